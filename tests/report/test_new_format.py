"""A new format is one class in one file: it is chosen, written with every run, and suggested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate.errors import SpecError
from ablate.registry import load_plugin
from ablate.report import FORMATS, Table, TableFormat, render, write_tables
from tests.registrations import temporary_registrations

SUFFIXES = ("csv", "md", "org", "tex")
FORMAT = '''\
"""The table as Org mode has it."""

from ablate.report import Table, TableFormat


class Org(TableFormat):
    """Lines between bars."""

    name = "org"
    file_name = "table.org"

    def text(self, table: Table) -> str:
        rows = [[cell.text for cell in line.cells] for line in table.lines]
        return "".join(f"| {' | '.join(row)} |\\n" for row in rows)
'''


@pytest.fixture(autouse=True)
def org(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "org.py").write_text(FORMAT, encoding="utf-8")
    with temporary_registrations():
        load_plugin(tmp_path / "org.py")
        yield
    del FORMATS["org"]


def test_it_is_chosen_by_its_name_and_every_run_writes_its_file(
    whole: Table, tmp_path: Path
) -> None:
    text = render(whole, "org")
    assert text.startswith("| baseline | ")
    assert len(text.splitlines()) == len(whole.lines)
    folder, names = tmp_path / "results", {"seeds.csv", *(f"table.{s}" for s in SUFFIXES)}
    assert {path.name for path in write_tables(whole, folder)} == names
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "table.org").read_text("utf-8") == text
    assert (folder / "table.md").read_text("utf-8") == render(whole, "markdown")


def test_its_name_is_taken_once_and_suggested(whole: Table) -> None:
    with pytest.raises(TypeError, match="two formats are called 'org'"):
        type("Other", (TableFormat,), {"name": "org"})
    with pytest.raises(SpecError, match="no format is called 'orgg'; did you mean 'org'"):
        render(whole, "orgg")
