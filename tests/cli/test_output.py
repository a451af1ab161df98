"""Rows are printed as rich prints them, whether or not they fit into lines."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from rich.table import Table
from rich.text import Text

from ablate.cli.output import print_rows
from ablate.console import Console

CELLS = ("", "a", "[b]x[/b]", "lr=0.1", " two  words", ":smile:", "日本語", "é", "12,345")


def _grid() -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("row", overflow="fold")
    grid.add_column("number", justify="right", no_wrap=True)
    grid.add_column("日付")
    return grid


def _rows(extra: str) -> list[list[str]]:
    random = Random(0)
    return [[extra, "1", ""], *([random.choice(CELLS) for _ in range(3)] for _ in range(200))]


@pytest.mark.parametrize("width", [16, 30, 80])
@pytest.mark.parametrize("rows", [[], _rows("x"), _rows("two\nlines"), _rows("long " * 8)])
def test_rows_are_those_of_rich(rows: Sequence[Sequence[str]], width: int) -> None:
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as actual:
        print_rows(console, _grid(), rows)
    grid = _grid()
    for row in rows:
        grid.add_row(*map(Text, row))
    with console.capture() as expected:
        console.print(grid)
    assert actual.get() == expected.get()
