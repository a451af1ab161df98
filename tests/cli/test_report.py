"""What ``ablate report`` prints into a pipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate.cli.app import app
from tests.made_up_runs import EXPERIMENT, finish


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments that report made-up runs, with standard output in a pipe."""
    spec = tmp_path / "pe.yaml"
    spec.write_text(EXPERIMENT, encoding="utf-8")
    finish(spec, tmp_path / "results")

    def no_terminal(_: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", no_terminal)
    monkeypatch.delenv("COLUMNS", raising=False)
    return ["report", str(spec), "--results", str(tmp_path / "results")]


def _width(arguments: list[str]) -> int:
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    table, _, _ = printed.stdout.partition("intervals:")
    return max(map(len, table.splitlines()))


def test_a_pipe_is_100_columns_wide_unless_told_otherwise(
    stored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 80 < _width(stored) <= 100 < _width([*stored, "--wide"])
    monkeypatch.setenv("COLUMNS", "80")
    assert _width(stored) <= 80


def test_a_text_file_is_as_wide_as_a_pipe(stored: list[str], tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    assert CliRunner().invoke(app, [*stored, "--output", str(file)]).exit_code == 0
    printed = CliRunner().invoke(app, [*stored, "--notes"]).stdout
    assert file.read_text("utf-8") == printed
    brief = CliRunner().invoke(app, stored).stdout
    assert "more notes (--notes, or table.md): intervals, verdict, " in brief
    assert len(brief.splitlines()) < len(printed.splitlines())
    assert brief.splitlines()[:5] == printed.splitlines()[:5]
