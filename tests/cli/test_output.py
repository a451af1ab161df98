"""Rows are printed as rich prints them, whether or not they fit into lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from rich.table import Table
from rich.text import Text

from ablate.cli.output import print_or_write, print_rows
from ablate.console import Console
from tests.cli.conftest import Ablate
from tests.made_up_runs import BASE, finished

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


@pytest.mark.parametrize(("term", "is_coloured"), [("xterm-256color", True), ("dumb", False)])
def test_a_terminal_that_prints_codes_as_text_gets_none(
    term: str, is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    given: dict[str, bool] = {}

    def render(**options: bool) -> str:
        given.update(options)
        return ""

    print_or_write(render, None, is_wide=False)
    assert given["is_coloured"] is is_coloured


def test_a_narrow_plan_has_each_change_in_a_line_of_its_own(
    ablate: Ablate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = "variants:\n  both: {model.position: learned, model.norm: none}\n"
    (folder / "two.yaml").write_text(BASE + variants, encoding="utf-8")
    monkeypatch.setattr("ablate.cli.plan.console_of_output", lambda: Console(width=80))
    lines = ablate("plan", "two.yaml").stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("both "))
    changes = [line.rstrip() for line in lines[at + 1 : at + 3]]
    assert changes == ["  model.position=learned", "  model.norm=none"]


def test_a_hash_to_copy_is_in_one_line(
    ablate: Ablate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = "variants:\n  a row with a name of many words: {model.norm: none}\n"
    finished(folder, f"{BASE}{variants}")
    monkeypatch.setattr("ablate.cli.runs.console_of_output", lambda: Console(width=70))
    printed = ablate("runs", "list").stdout
    hashes = [path.name for path in (folder / "results" / "runs").iterdir() if path.is_dir()]
    assert len(hashes) == 4
    assert all(hash_ in printed for hash_ in hashes)
