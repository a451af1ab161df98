"""The table in a terminal, in as many blocks of columns as its width asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len, chop_cells
from rich.style import Style

from ablate.report.formats import TableFormat
from ablate.report.table import FIRST_BELOW, Table, aligned, joined_changes, with_intervals
from ablate.wording import and_list, counted

_GAP = "  "
_FOLDS = (24, 14, 10)  # what a text should fit in: before numbers are left out, and after
_BREAKS = re.compile(r"(?<=[=_/])|(?<=-)(?!\d)")  # of a word; a number stays whole
_MOST_CHANGES = 2  # columns of changed paths, where the terminal is too narrow for all
_WIDEST_PROSE = 110
_MOST_NOTES, _MOST_LABELS = 5, 8
_BOLD, _DIM = Style(bold=True), Style(dim=True)


class Terminal(TableFormat):
    """Lines that fit the width of a terminal.

    Where a table does not fit, what stands in brackets goes first; then texts fold and more than
    two changed paths share one column; then columns go below the others, those of the highest rank
    first. Before columns go that the first grid is to have, texts fold further.
    """

    name = "terminal"
    suffix = ".txt"

    def text(self, table: Table) -> str:
        width = self.width
        grids = [*_fitting(table, width)]
        if table.more is not None:
            whole = _Grid(table.more)
            fits = width is None or whole.width <= width
            grids += [whole] if fits else _packed(table.more, width or 0)
        widest = max(_WIDEST_PROSE, *(grid.width for grid in grids))
        prose_width = min(width or _WIDEST_PROSE, widest)
        heading = table.name + (f"   {table.question}" if table.question else "")

        def face(style: Style, text: str) -> str:
            return style.render(text) if self.is_coloured and text else text

        lines = [face(_BOLD, line) for line in _wrapped(heading, prose_width)]
        lines += [face(_BOLD, line) for line in _wrapped(table.conclusion, prose_width)]
        for at, grid in enumerate(grids):
            grid_lines = [*grid.lines()][1 if at else 0 :]  # one rule between two blocks
            lines += [face(_BOLD, text) if is_bold else text for text, is_bold in grid_lines]
        vital = [note for note in table.footnotes if note.is_vital]
        notes = table.footnotes if self.has_all_notes else vital[:_MOST_NOTES]
        texts = [f"{note.label}: {note.text}" for note in notes]
        if self.has_all_notes and any(grid.lacks_asides for grid in grids):
            texts.append("brackets: this terminal is too narrow for them; table.md has them")
        if others := [note.label for note in table.footnotes if note not in notes]:
            more = and_list(others, _MOST_LABELS)
            texts.append(f"{counted(len(others), 'more note')} (--notes, or table.md): {more}")
        for text in texts:
            lines += [face(_DIM, line) for line in _wrapped(text, prose_width, indent="  ")]
        return "\n".join(lines) + "\n"


def _fitting(table: Table, width: int | None) -> Iterator[_Grid]:
    """Yield the grids of one block, each as wide as the terminal at most, if that can be."""
    for drawn in _ever_narrower(table):
        if width is None or drawn.width <= width:
            break
    yield drawn
    if drawn.left_out is not None and width is not None:
        yield from _packed(drawn.left_out, width)


def _packed(table: Table, width: int) -> Iterator[_Grid]:
    """Yield the columns in their order in as few grids as hold them, an interval by its value."""
    indices = [0]
    for pair in with_intervals(table, range(1, len(table.columns))):
        grid = _Grid(table.only([*indices, *pair]), has_asides=False, fold=_FOLDS[0])
        if grid.width > width and len(indices) > 1:
            yield from _fitting(table.only(indices), width)
            indices = [0]
        indices += pair
    yield from _fitting(table.only(indices), width)


@dataclass(frozen=True)
class _Grid:
    """A table cut into lines of text: per column, per cell, one text per line."""

    table: Table
    has_asides: bool = True
    fold: int | None = None
    left_out: Table | None = None

    @property
    def width(self) -> int:
        gaps = len(_GAP) * (len(self.table.columns) - 1)
        return sum(map(_width, self._columns())) + gaps

    @property
    def lacks_asides(self) -> bool:
        cells = chain.from_iterable(line.cells for line in self.table.lines)
        return not self.has_asides and any(cell.aside for cell in cells)

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield every line, rules included, and whether it is bold."""
        columns = self._columns()
        numbers = [column.is_number for column in self.table.columns]
        n_rows = len(self.table.lines) + 1
        yield "━" * self.width, False
        for at in range(n_rows):
            cells = [texts[at] for texts in columns]
            if at > 2 and self.table.lines[at - 1].begins_group:
                yield "─" * self.width, False
            for row in range(max(map(len, cells))):
                pieces = []
                for cell, texts, is_right in zip(cells, columns, numbers, strict=True):
                    text = cell[row] if row < len(cell) else ""
                    blank = " " * (_width(texts) - cell_len(text))
                    pieces.append(blank + text if is_right else text + blank)
                yield _GAP.join(pieces).rstrip(), at <= 1
            if at <= 1 < n_rows - at:
                yield "─" * self.width, False
        yield "━" * self.width, False

    def _columns(self) -> list[list[list[str]]]:
        columns = []
        for at, column in enumerate(self.table.columns):
            cells = [line.cells[at] for line in self.table.lines]
            if column.is_number:
                texts = [[text] for text in aligned(cells, has_asides=self.has_asides)]
            elif self.fold is None:
                texts = [[cell.text] for cell in cells]
            else:
                texts = [_folded(cell.text, self.fold) for cell in cells]
            columns.append([[column.header, column.detail], *texts])
        return columns


def _ever_narrower(table: Table) -> Iterator[_Grid]:
    yield _Grid(table)
    yield _Grid(table, has_asides=False)
    yield _Grid(table, has_asides=False, fold=_FOLDS[0])
    most = len(table.columns) if table.is_of_paper else _MOST_CHANGES
    yield _Grid(joined_changes(table, most), has_asides=False, fold=_FOLDS[0])
    indices = list(range(len(table.columns)))
    rest: Table | None = None
    while True:  # the columns of the highest rank go below; of one rank, the last number does
        numbers = [at for at in indices if table.columns[at].is_number]
        highest = max(table.columns[at].rank for at in indices)
        going = {at for at in indices if table.columns[at].rank == highest}
        if going >= set(numbers):
            going = set(chain(*with_intervals(table, numbers)[1:][-1:]))  # the first number stays
        if not going:
            break
        indices = [index for index in indices if index not in going]
        rest = table.only([0, *(at for at in range(len(table.columns)) if at not in indices)])
        narrower = joined_changes(table.only(indices), most)
        yield _Grid(narrower, has_asides=False, fold=_FOLDS[0], left_out=rest)
        if max(table.columns[index].rank for index in indices) < FIRST_BELOW:
            narrower = joined_changes(narrower, most=1)
            for fold in _FOLDS:
                yield _Grid(narrower, has_asides=False, fold=fold, left_out=rest)
    narrowest = joined_changes(table.only(indices), most=1)
    for fold in _FOLDS[1:]:
        yield _Grid(narrowest, has_asides=False, fold=fold, left_out=rest)


def _folded(text: str, limit: int) -> list[str]:
    """Break ``text`` where it passes ``limit``: before brackets, after commas, spaces, = _ / and -.

    A long word that has none of these is broken anywhere.
    """
    words = re.split(r"(?<=[, ])|(?=\()", text)
    lines = [""]
    parts = ([word] if cell_len(word) <= limit else _BREAKS.split(word) for word in words)
    pieces = (
        chop_cells(part, limit) if cell_len(part) > _FOLDS[0] else [part]
        for part in chain.from_iterable(parts)
    )
    for piece in chain.from_iterable(pieces):
        if lines[-1].strip() and cell_len(lines[-1] + piece.rstrip()) > limit:
            lines.append(" ")
        lines[-1] += piece.lstrip() if not lines[-1].strip() else piece
    return [line.rstrip() for line in lines]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Break ``text`` at spaces, by the columns it takes in a terminal; a longer word anywhere."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        pieces = chop_cells(word, width - len(indent)) or [""]  # none of two spaces in a row
        lines += [f"{indent}{piece}" for piece in pieces]
    return lines if lines[0] else lines[1:]


def _width(texts: Sequence[Sequence[str]]) -> int:
    return max(cell_len(line) for cell in texts for line in cell)
