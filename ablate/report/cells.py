"""One table, before it is text: what every format renders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ablate.analysis import Comparisons, Summary
from ablate.config import Negligible, Published
from ablate.report.details import Details

NOTHING = "\N{EN DASH}"
"""Stands where there should be a number and is none; a cell without text says `as the baseline`."""


@dataclass(frozen=True)
class Cell:
    """One cell for human eyes.

    Attributes:
        value: a text, or the number itself with a true minus.
        aside: of the value, what it is relative to the baseline, or its interval; in brackets.
        mark: of a footnote.
    """

    value: str = ""
    aside: str = ""
    mark: str = ""

    @property
    def text(self) -> str:
        """The cell in one line."""
        aside = f" ({self.aside})" if self.aside else ""
        return self.value + self.mark + aside


@dataclass(frozen=True)
class Column:
    """One column for human eyes.

    Attributes:
        key: the metric or the changed path that it shows.
        header: what it shows, in a word or two.
        detail: of what, or in what unit; the second line of the header.
        kind: of text columns, what they say; all else is ``measure``, aligned right.
        rank: columns of rank 0 stand together; where there is too little room, those of the highest
            rank go below the others first.
    """

    key: str
    header: str
    detail: str = ""
    kind: Literal["row", "change", "verdict", "measure"] = "measure"
    rank: int = 0

    @property
    def is_number(self) -> bool:
        """Whether its cells are numbers."""
        return self.kind == "measure"

    @property
    def title(self) -> str:
        """The header in one line."""
        return f"{self.header} {self.detail}".rstrip()


@dataclass(frozen=True)
class Line:
    """One row of the experiment: its cells, one per column, and what they were made from.

    Attributes:
        begins_group: whether it is the first of rows that stand together, under a rule.
    """

    cells: tuple[Cell, ...]
    changes: Mapping[str, Any]
    summary: Summary
    begins_group: bool = False


@dataclass(frozen=True)
class Footnote:
    """A remark under the table: ``label`` says in a word what it is about, or is its mark."""

    label: str
    text: str


@dataclass(frozen=True, repr=False)
class Table:
    """An experiment's results; the first line is the baseline.

    Attributes:
        published: what others have printed of the same rows.
        negligible: how small a difference must be not to matter.
        comparisons: of the rows with the baseline, by metric.
        has_one_tokenizer: whether all rows read the same target tokens.
        signatures: how each metric was computed, by its name.
        conclusion: one sentence that says what the numbers come to.
        more: a second block of columns for the same rows, under the first.
        trial: how the table differs from that of the whole experiment, in sentences: overrides, and
            rows and seeds that are left out.
        details: what stands behind it; None where there are the numbers alone.
        is_of_paper: whether it has the layout of a paper, in which each changed path has a column.
    """

    name: str
    question: str | None
    seeds: tuple[int, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    footnotes: tuple[Footnote, ...]
    published: Published | None = None
    negligible: Negligible = field(default_factory=Negligible)
    comparisons: Comparisons = field(default_factory=dict)
    has_one_tokenizer: bool = True
    signatures: Mapping[str, str] = field(default_factory=dict)
    conclusion: str = ""
    more: Table | None = None
    trial: tuple[str, ...] = ()
    details: Details | None = None
    is_of_paper: bool = False

    def __repr__(self) -> str:
        n_columns = sum(len(block.columns) for block in self.blocks)
        return f"<Table of {self.name}: {len(self.lines)} rows, {n_columns} columns>"

    @property
    def blocks(self) -> tuple[Table, ...]:
        """The table, and what stands under it."""
        return (self, self.more) if self.more else (self,)

    def column(self, key: str) -> list[Cell]:
        """Return the cells of one column, baseline first."""
        keys = [column.key for column in self.columns]
        if key not in keys and self.more:
            return self.more.column(key)
        at = keys.index(key)
        return [line.cells[at] for line in self.lines]

    def only(self, indices: Sequence[int]) -> Table:
        """Return the table with no other columns than those with these indices."""
        lines = [
            replace(line, cells=tuple(line.cells[at] for at in indices)) for line in self.lines
        ]
        columns = tuple(self.columns[at] for at in indices)
        return replace(self, columns=columns, lines=tuple(lines))


def aligned(cells: Sequence[Cell], *, has_asides: bool = True) -> list[str]:
    """Write the numbers of a column so that their decimal points stand below one another."""
    return [
        value + mark + aside
        for value, mark, aside in zip(
            _padded([cell.value for cell in cells], is_left=False),
            _padded([cell.mark for cell in cells]),
            _padded([f" ({cell.aside})" if cell.aside and has_asides else "" for cell in cells]),
            strict=True,
        )
    ]


def _padded(texts: Sequence[str], *, is_left: bool = True) -> list[str]:
    width = max(map(len, texts))
    return [text.ljust(width) if is_left else text.rjust(width) for text in texts]
