"""``ablate run``: what it does with a file that changes, and with what others have left."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ablate import api
from ablate.errors import DetachedError
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.task import TaskGroup
from tests.made_up_runs import EXPERIMENT, finished


def options(folder: Path, **others: Any) -> api.RunOptions:
    given = {"figures": False, "probes": False, **others}
    return api.RunOptions(device="cpu", results=folder / "results", **given)


@pytest.mark.parametrize("edited", ["seeds: [1, 2, 3]", "seeds: [1, 2"])
def test_a_file_that_is_edited_during_the_runs_belongs_to_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    file, module = finished(tmp_path), import_module("ablate.api.run")
    complete = module.complete

    def edit_and_complete(*arguments: Any) -> Any:
        file.write_text(EXPERIMENT.replace("seeds: [1, 2]", edited), encoding="utf-8")
        return complete(*arguments)

    monkeypatch.setattr(module, "complete", edit_and_complete)
    outcome = api.run(file, options(tmp_path))
    assert outcome.exit_status == 0
    assert outcome.experiment.seeds == (1, 2)
    assert (tmp_path / "results" / tmp_path.name / "pe" / "table.md").is_file()


def test_fresh_repeats_the_rows_that_are_asked_for(tmp_path: Path) -> None:
    """And not the baseline, which is only in the same table."""
    submitted: list[tuple[str, int]] = []

    class Leaving(Local):
        def detach(self, work: Sequence[Sequence[TaskGroup]]) -> None:
            tasks = [task for groups in work for group in groups for task in group]
            submitted.extend((task.variant, int(task.spec["seed"])) for task in tasks)
            raise DetachedError("submitted")

    given = options(tmp_path, backend=Leaving([Device("cpu")]), fresh=True)
    with pytest.raises(DetachedError):
        api.run(finished(tmp_path), given, only=["none"])
    assert submitted == [("none", 1), ("none", 2)]
