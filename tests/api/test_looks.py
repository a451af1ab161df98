"""Seeds that were added after a table with verdicts had been seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import api
from ablate.api.looks import earlier_looks, note_look
from ablate.api.selection import RunLookup, Selection, select
from ablate.cli.app import app
from ablate.store import Store
from tests import made_up_runs
from tests.report.made_up import notes


def look(file: Path, *overrides: str, seeds: tuple[int, ...] | None = None) -> Selection:
    results = file.parent / "results"
    selection = select(file, overrides, seeds, lookup=RunLookup(Store(results)))
    table = api.report(file, seeds=seeds, overrides=overrides, results=results).table
    note_look(selection, table, results)
    return selection


def with_seeds(file: Path, seeds: str) -> Path:
    text = made_up_runs.EXPERIMENT.replace("seeds: [1, 2]", f"seeds: {seeds}")
    return made_up_runs.finished(file.parent, text)


def test_a_table_says_that_it_has_seeds_which_an_earlier_one_had_not(tmp_path: Path) -> None:
    file, results = made_up_runs.finished(tmp_path), tmp_path / "results"
    look(file)
    assert not earlier_looks(look(file), results)
    assert "seeds added" not in notes(api.report(file, results=results).table)
    with_seeds(file, "[1, 2, 3]")
    look(file)
    with_seeds(file, "[2, 1, 3, 7]")
    table = api.report(file, results=results).table
    assert earlier_looks(look(file), results) == [[1, 2], [1, 2, 3]]
    text = notes(table)["seeds added"]
    assert text.startswith("7, after a table with verdicts from seeds 1, 2; 1, 2, 3")
    with_seeds(file, "[1, 5]")
    assert "seeds added" not in notes(api.report(file, results=results).table)


def test_fewer_seeds_after_more_are_no_earlier_look(tmp_path: Path) -> None:
    file, results = with_seeds(tmp_path / "pe.yaml", "[1, 2, 3]"), tmp_path / "results"
    look(file)
    look(file, seeds=(1, 2))
    assert not earlier_looks(look(file), results)


def test_looks_that_are_planned_are_no_added_seeds(tmp_path: Path) -> None:
    file = with_seeds(tmp_path / "pe.yaml", "[1, 2, 3]\nlooks: [2, 3]")
    results = tmp_path / "results"
    look(file)
    assert not earlier_looks(look(file), results)
    look(file, seeds=(1, 2))
    assert "seeds added" not in notes(api.report(file, results=results).table)


def test_a_plan_of_looks_that_was_dropped_or_extended_is_reported(tmp_path: Path) -> None:
    file = with_seeds(tmp_path / "pe.yaml", "[1, 2, 3]\nlooks: [2, 3]")
    results = tmp_path / "results"
    look(file)
    with_seeds(file, "[1, 2, 3]")
    text = notes(api.report(file, results=results).table)["seeds added"]
    assert text.startswith("3, after a table with verdicts from seeds 1, 2: if seeds are added")
    with_seeds(file, "[1, 2, 3, 4]\nlooks: [2, 3, 4]")
    look(file)
    text = notes(api.report(file, results=results).table)["seeds added"]
    assert text.startswith("4, after a table with verdicts from seeds 1, 2; 1, 2, 3: the intervals")


def test_one_seed_and_runs_under_overrides_are_no_looks(tmp_path: Path) -> None:
    file, results = made_up_runs.finished(tmp_path), tmp_path / "results"
    look(file, seeds=(1,))
    made_up_runs.finish(file, results, ["training.steps=7"])
    look(file, "training.steps=7")
    assert not [*results.rglob("looks.json")]
    with_seeds(file, "[1, 2, 3]")
    assert not earlier_looks(look(file), results)


@pytest.mark.parametrize("content", ["{", "3", "[1]", "[[[]]]", "\xff"])
def test_a_file_that_holds_no_looks_holds_none(tmp_path: Path, content: str) -> None:
    file, results = made_up_runs.finished(tmp_path), tmp_path / "results"
    selection = look(file)
    (kept,) = results.rglob("looks.json")
    whole = kept.read_bytes()
    kept.write_bytes(content.encode("latin-1"))
    assert earlier_looks(selection, results) == []
    look(file)
    assert kept.read_bytes() == whole


@pytest.mark.e2e
def test_run_notes_what_it_prints(tmp_path: Path) -> None:
    file = tmp_path / "pe.yaml"
    file.write_text(made_up_runs.EXPERIMENT, encoding="utf-8")
    call = ["run", str(file), "--results", str(tmp_path / "results"), "--no-probe", "--no-figures"]
    for seeds in ("1,2", "1,2,3"):
        outcome = CliRunner().invoke(app, [*call, "--device", "cpu", "--seeds", seeds])
        assert outcome.exit_code == 0, outcome.output
    assert "seeds added: 3, after a table with verdicts from seeds 1, 2" in outcome.output
