"""One table, before it is text: what every format renders, and the choice of its columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ablate.analysis.contexts import OverContexts
from ablate.analysis.summary import Summary
from ablate.errors import SpecError
from ablate.report.results import Details, Results
from ablate.wording import no_such

ALL, COMPACT = "all", "compact"
FIRST_BELOW = 3  # rank: from here on columns go below sooner than texts fold to the utmost
_ALWAYS = ("row", "change")


@dataclass(frozen=True)
class Cell:
    """One cell for human eyes; without text it says `as the baseline`."""

    value: str = ""  # a text, or the number itself with a true minus
    aside: str = ""  # in brackets: what it is relative to the baseline, or its interval
    mark: str = ""  # of a footnote

    @property
    def text(self) -> str:
        aside = f" ({self.aside})" if self.aside else ""
        return self.value + self.mark + aside


@dataclass(frozen=True)
class Column:
    """One column for human eyes.

    Columns of rank 0 stand together; where there is too little room, those of the highest rank go
    below the others first.
    """

    key: str  # the metric or the changed path that it shows
    header: str  # what it shows, in a word or two
    detail: str = ""  # of what, or in what unit; the second line of the header
    kind: Literal["row", "change", "verdict", "measure"] = "measure"  # measures are aligned right
    rank: int = 0

    @property
    def is_number(self) -> bool:
        return self.kind == "measure"

    @property
    def title(self) -> str:
        return f"{self.header} {self.detail}".rstrip()


@dataclass(frozen=True)
class Line:
    """One row of the experiment: its cells, one per column, and what they were made from."""

    cells: tuple[Cell, ...]
    changes: Mapping[str, Any]
    summary: Summary
    begins_group: bool = False  # the first of rows that stand together, under a rule


@dataclass(frozen=True)
class Footnote:
    """A remark under the table: ``label`` is its subject in a word, or its mark."""

    label: str
    text: str
    is_vital: bool = False  # without it the table would be read otherwise


@dataclass(frozen=True, repr=False)
class Table:
    """An experiment's results; the first line is the baseline."""

    name: str
    question: str | None
    seeds: tuple[int, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    footnotes: tuple[Footnote, ...]
    results: Results | None = None  # what it was made from; None of two sets of results
    conclusion: str = ""  # one sentence that says what the numbers come to
    more: Table | None = None  # a second block of columns for the same rows, under the first
    trial: tuple[str, ...] = ()  # how it differs from the whole experiment's, in sentences
    details: Details | None = None  # what stands behind it; None where there are numbers alone
    is_of_paper: bool = False  # whether it has the layout of a paper, a column per changed path
    contexts: Contexts | None = None  # those that it is the overview of

    def __repr__(self) -> str:
        n_columns = sum(len(block.columns) for block in self.blocks)
        return f"<Table of {self.name}: {len(self.lines)} rows, {n_columns} columns>"

    @property
    def blocks(self) -> tuple[Table, ...]:
        return (self, self.more) if self.more else (self,)

    def column(self, key: str) -> list[Cell]:
        keys = [column.key for column in self.columns]
        if key not in keys and self.more:
            return self.more.column(key)
        at = keys.index(key)
        return [line.cells[at] for line in self.lines]

    def only(self, indices: Sequence[int]) -> Table:
        lines = [
            replace(line, cells=tuple(line.cells[at] for at in indices)) for line in self.lines
        ]
        columns = tuple(self.columns[at] for at in indices)
        return replace(self, columns=columns, lines=tuple(lines))


@dataclass(frozen=True)
class Contexts:
    """The contexts of an experiment, by name, and what its rows come to in all of them."""

    tables: Mapping[str, Table]
    over: Mapping[str, Mapping[str, OverContexts]]  # by kind of metric, as in ``bleu``, and row
    trend: str | None  # a path, and its number in each context
    sizes: Mapping[str, float]


def aligned(cells: Sequence[Cell], *, has_asides: bool = True) -> list[str]:
    """Write the numbers of a column so that their decimal points stand below one another."""
    asides = [f" ({cell.aside})" if cell.aside and has_asides else "" for cell in cells]
    value, mark, aside = (
        max(map(len, texts))
        for texts in ([c.value for c in cells], [c.mark for c in cells], asides)
    )
    return [
        f"{cell.value:>{value}}{cell.mark.ljust(mark)}{text.ljust(aside)}"
        for cell, text in zip(cells, asides, strict=True)
    ]


def chosen(table: Table, names: Sequence[str]) -> Table:
    """Return a table with some columns of both blocks in one, in the order of the table.

    The names are ``all``; ``compact``, what a paper has room for, of contexts all; or headers, with
    or without their second line, in lower case and with underscores for what is no letter or digit.
    The names of the rows and what they change are always shown.
    """
    if list(names) == [ALL] or (table.contexts is not None and list(names) == [COMPACT]):
        return table
    joined = in_one_block(table)
    if list(names) == [COMPACT]:
        return _compact(joined)
    known = {column: {_slug(column.header), _slug(column.title)} for column in joined.columns}
    for name in names:
        if name in (ALL, COMPACT):
            raise SpecError(
                f"--columns {','.join(names)}: {name!r} stands alone; remove the others"
            )
        if not any(name in of_column for of_column in known.values()):
            titles = [_slug(column.title) for column in known if column.kind not in _ALWAYS]
            raise SpecError(no_such("column", name, [ALL, COMPACT, *dict.fromkeys(titles)]))
    return _select(joined, lambda column: bool(known[column] & set(names)))


def in_one_block(table: Table) -> Table:
    """Put the columns of the second block beside those of the first."""
    if table.more is None:
        return table
    lines = [
        replace(line, cells=line.cells + beside.cells[1:])
        for line, beside in zip(table.lines, table.more.lines, strict=True)
    ]
    columns = table.columns + table.more.columns[1:]
    return replace(table, columns=columns, lines=tuple(lines), more=None)


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
    return replace(table, columns=columns, lines=tuple(map(joined, table.lines)))


def with_intervals(table: Table, indices: Iterable[int]) -> list[list[int]]:
    """Return the ``indices`` of columns, each value with its interval."""
    pairs: list[list[int]] = []
    for at in indices:
        if pairs and table.columns[at].key.startswith(f"{table.columns[pairs[-1][0]].key}."):
            pairs[-1].append(at)
        else:
            pairs.append([at])
    return pairs


def _compact(table: Table) -> Table:
    """Return BLEU, its difference, parameters, and what is published, beside ours of that kind."""
    bleu = next((column.key for column in table.columns if column.header == "BLEU"), "")
    keys = [bleu, f"{bleu}.difference", f"{bleu}.difference.interval", "params.total"]
    theirs = {column.key for column in table.columns if column.key.startswith("published.")}
    keys += [f"{bleu}_lc_tok"] if "published.bleu_lc_tok" in theirs else []
    keys += ["dev.perplexity"] if "published.ppl" in theirs else []
    some = _select(table, lambda column: column.key in (*keys, *theirs))

    def brief(line: Line) -> Line:
        """Leave out what stands in brackets, but that a change was tuned or matched."""
        pairs = zip(some.columns, line.cells, strict=True)
        cells = [c if column.kind == "change" else replace(c, aside="") for column, c in pairs]
        return replace(line, cells=tuple(cells))

    return joined_changes(replace(some, lines=tuple(map(brief, some.lines))), most=1)


def _select(table: Table, is_kept: Callable[[Column], bool]) -> Table:
    columns = enumerate(table.columns)
    return table.only([at for at, column in columns if column.kind in _ALWAYS or is_kept(column)])


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.replace("Δ", "delta ").lower()).strip("_")
