"""Which columns of a table are shown, and how they are divided where there is little room."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ablate.errors import SpecError
from ablate.report.cells import Cell, Column, Line, Table
from ablate.wording import no_such

ALL, COMPACT = "all", "compact"
FIRST_BELOW = 3  # rank: from here on columns go below sooner than texts fold to the utmost
_COSTS = ("params.", "flops.", "train.", "speed.", "memory.")
_ALWAYS = ("row", "change")


def chosen(table: Table, names: Sequence[str]) -> Table:
    """Return a table with some columns of both blocks in one, in the order of the table.

    The names of the rows and what they change are always shown.

    Args:
        table: with all columns.
        names: ``all``; ``compact``, what a paper has room for; or headers, with or without their
            second line, in lower case and with underscores for what is no letter or digit.

    Raises:
        SpecError: if there is no such column, or ``all`` or ``compact`` does not stand alone.
    """
    if list(names) == [ALL]:
        return table
    if list(names) == [COMPACT]:
        return compact(table)
    for name in names:
        if name in (ALL, COMPACT):
            raise SpecError(
                f"--columns {','.join(names)}: {name!r} stands alone; remove the others"
            )
    joined = _one_block(table)
    known = {column: {_slug(column.header), _slug(column.title)} for column in joined.columns}
    for name in names:
        if not any(name in of_column for of_column in known.values()):
            titles = [_slug(column.title) for column in known if column.kind not in _ALWAYS]
            raise SpecError(no_such("column", name, [ALL, COMPACT, *dict.fromkeys(titles)]))
    return _select(joined, lambda column: bool(known[column] & set(names)))


def compact(table: Table) -> Table:
    """Return the columns that a paper has room for.

    BLEU, its difference with an interval, parameters, and what others have published, beside ours
    of the same kind.
    """
    joined = _one_block(table)
    bleu = next((column.key for column in joined.columns if column.header == "BLEU"), "")
    keys = [bleu, f"{bleu}.difference", f"{bleu}.difference.interval", "params.total"]
    theirs = {column.key for column in joined.columns if _is_published(column)}
    keys += [f"{bleu}_lc_tok"] if "published.bleu_lc_tok" in theirs else []
    keys += ["dev.perplexity"] if "published.ppl" in theirs else []
    some = _select(joined, lambda column: column.key in keys or _is_published(column))
    lines = [replace(line, cells=tuple(map(_without_aside, line.cells))) for line in some.lines]
    return joined_changes(replace(some, lines=tuple(lines)), most=1)


def by_cost(table: Table) -> list[Table]:
    """Return the columns that a row is judged by, and those of what it costs, if there are any."""
    high = [at for at, column in enumerate(table.columns) if column.key.startswith(_COSTS)]
    low = [at for at in range(len(table.columns)) if at not in high]
    return [table.only(low), table.only([0, *high])] if high else [table]


def joined_changes(table: Table, most: int) -> Table:
    """Put all changed paths into one column, if there are more than ``most``."""
    where = [at for at, column in enumerate(table.columns) if column.kind == "change"]
    if len(where) <= most:
        return table

    def joined(line: Line) -> Line:
        labelled = [(table.columns[at].header, line.cells[at].text) for at in where]
        text = ", ".join(f"{label}={value}" for label, value in labelled if value)
        return replace(line, cells=(line.cells[0], Cell(text), *line.cells[where[-1] + 1 :]))

    column = Column("", "changes", kind="change")
    columns = (table.columns[0], column, *table.columns[where[-1] + 1 :])
    return replace(table, columns=columns, lines=tuple(joined(line) for line in table.lines))


def _one_block(table: Table) -> Table:
    """Return a table with the columns of its second block beside those of its first."""
    if table.more is None:
        return table
    lines = [
        replace(line, cells=line.cells + beside.cells[1:])
        for line, beside in zip(table.lines, table.more.lines, strict=True)
    ]
    columns = table.columns + table.more.columns[1:]
    return replace(table, columns=columns, lines=tuple(lines), more=None)


def _select(table: Table, is_kept: Callable[[Column], bool]) -> Table:
    columns = enumerate(table.columns)
    return table.only([at for at, column in columns if column.kind in _ALWAYS or is_kept(column)])


def _is_published(column: Column) -> bool:
    return column.key.startswith("published.")


def _without_aside(cell: Cell) -> Cell:
    return replace(cell, aside="")


def _slug(title: str) -> str:
    plain = title.replace("Δ", "delta ").lower()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
