"""With which fallbacks a run resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ablate.runner.run_files import resume, tidy
from tests.runner.conftest import MakeTask

pytestmark = pytest.mark.e2e
HALVES = {"micro_batch_factor": 2}
EAGER = {"engine": "eager", "engine_note": "not cuda_graph: no capture"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run that was stopped."""
    for name in ("checkpoint.pt", "snapshots/1.pt", "error.txt", "record.json", "log.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_as_it_was_asked_for_goes_on(folder: Path, task: MakeTask) -> None:
    assert resume(task("row"), folder) == task("row")
    assert _names(folder) == ["checkpoint.pt", "log.txt", "snapshots"]


def test_a_run_that_is_to_be_fresh_begins_anew(folder: Path, task: MakeTask) -> None:
    fresh = task("row", fresh=True)
    assert resume(fresh, folder) == fresh
    assert _names(folder) == ["log.txt"]


@pytest.mark.parametrize("first", [["changed.json", "checkpoint.pt"], ["checkpoint.pt"]])
def test_a_kill_while_a_run_begins_anew_leaves_no_checkpoint_of_unknown_making(
    first: list[str], folder: Path, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "changed.json").write_text(json.dumps(HALVES), encoding="utf-8")
    names = [*first, *(name for name in _names(folder) if name not in first)]
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / name for name in names]))

    class KilledError(Exception):
        """In place of a kill, after one file has gone."""

    unlink = Path.unlink

    def unlink_one(path: Path, missing_ok: bool = False) -> None:
        if path.name in ("changed.json", "checkpoint.pt"):
            unlink(path)
            raise KilledError
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as killing:
        killing.setattr(Path, "unlink", unlink_one)
        with pytest.raises(KilledError):
            resume(task("row", micro_batch_factor=4), folder)
    assert not (folder / "checkpoint.pt").exists()


@pytest.mark.parametrize("changes", [HALVES, EAGER, HALVES | EAGER])
def test_a_run_that_is_changed_begins_anew_and_goes_on_as_it_was_begun(
    changes: dict[str, Any], folder: Path, task: MakeTask
) -> None:
    job = task("row", engine="cuda_graph")
    changed = job.with_fallbacks(changes)
    assert changed.fallbacks == changes
    assert resume(changed, folder) == changed
    assert _names(folder) == ["changed.json", "log.txt"]
    (folder / "checkpoint.pt").touch()
    for again in (changed, job):  # at once, and after it was stopped
        resumed = resume(again, folder)
        assert (resumed.fallbacks, resumed.engine) == (changes, changed.engine)
        assert _names(folder) == ["changed.json", "checkpoint.pt", "log.txt"]
    further = changed.with_fallbacks({"micro_batch_factor": 4})
    assert resume(further, folder) == further
    assert _names(folder) == ["changed.json", "log.txt"]


def test_without_a_checkpoint_it_is_tried_as_it_was_asked_for(folder: Path, task: MakeTask) -> None:
    resume(task("row").with_fallbacks(HALVES), folder)
    assert resume(task("row"), folder) == task("row")
    assert _names(folder) == ["log.txt"]


def test_nothing_of_it_is_left_behind(folder: Path, task: MakeTask) -> None:
    resume(task("row").with_fallbacks(HALVES), folder)
    (folder / "checkpoint.pt").touch()
    (folder / ".hidden.new").touch()
    (folder / ".ipynb_checkpoints").mkdir()  # whose is it?
    tidy(folder)
    (folder / ".ipynb_checkpoints").rmdir()
    assert _names(folder) == ["log.txt"]
