"""How failed tasks are repeated, as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ablate.runner.failures import TaskOutcome, retry
from ablate.runner.task import Failure
from tests.runner.conftest import MakeTask

ALONE = {"isolation": "device"}


@pytest.mark.parametrize(
    ("failure", "task_was", "shared_device", "largest", "next_is"),
    [
        # Memory: alone, then in smaller and smaller parts, down to single sentences
        ("memory", {"runs_per_process": 4}, True, 40, ALONE),
        ("memory", {}, True, None, ALONE),
        ("memory", {}, False, 40, ALONE | {"micro_batch_factor": 2}),
        ("memory", ALONE, True, 40, {"micro_batch_factor": 2}),
        ("memory", {"micro_batch_factor": 2}, False, 40, ALONE | {"micro_batch_factor": 4}),
        ("memory", {"micro_batch_factor": 32}, False, 40, ALONE | {"micro_batch_factor": 64}),
        ("memory", {"micro_batch_factor": 64}, False, 40, None),
        ("memory", {}, False, 1, None),
        ("memory", ALONE, False, None, None),  # batches had no part in it
        # Signal 9: the same, but that it may have had another reason
        ("killed", {}, False, 40, ALONE),
        ("killed", {}, False, None, ALONE),
        ("killed", ALONE, False, 40, {"micro_batch_factor": 2}),
        ("killed", ALONE, False, None, None),
        # An engine: the eager one, which has no other
        ("engine", {"engine": "cuda_graph"}, True, 40, {"engine": "eager", "isolation": "process"}),
        ("engine", {"engine": "compile"} | ALONE, False, 40, {"engine": "eager"}),
        ("engine", {"engine": "eager"}, False, 40, None),
        # The rest
        ("process_lost", {"runs_per_process": 4}, True, 40, {}),
        ("stalled", {}, True, 40, {"has_stalled": True}),
        (
            "stalled",
            {"runs_per_process": 4},
            True,
            40,
            {"has_stalled": True, "isolation": "process"},
        ),
        ("stalled", {"has_stalled": True}, True, 40, None),
        ("other", {"runs_per_process": 4}, True, 40, {"isolation": "process"}),
        ("other", {"runs_per_process": 1}, True, 40, None),
        (None, {}, True, 40, None),
    ],
)
def test_what_comes_next(
    failure: Failure | None,
    task_was: dict[str, Any],
    shared_device: bool,
    largest: int | None,
    next_is: dict[str, Any] | None,
    task: MakeTask,
) -> None:
    before = task("row", **task_was)
    again = retry(TaskOutcome(before, failure, "no luck", shared_device, largest))
    if next_is is None:
        assert again is None
        return
    assert again is not None
    note = f"not {before.engine}: no luck" if "engine" in next_is else ""
    assert again.task == task("row", **{**task_was, **next_is, "engine_note": note})


@pytest.mark.parametrize("failure", ["memory", "killed", "engine", "stalled", "other"])
def test_there_is_an_end_to_it_whatever_happens(failure: Failure, task: MakeTask) -> None:
    attempts = [task("row", engine="cuda_graph", runs_per_process=8)]
    while again := retry(TaskOutcome(attempts[-1], failure, "", True, largest_batch=200)):
        assert len(attempts) < 20
        attempts.append(replace(again.task, runs_per_process=1))
    n_expected = {"memory": 10, "killed": 10, "engine": 2, "stalled": 2, "other": 2}
    assert len(attempts) == n_expected[failure]


@pytest.mark.parametrize("failure", ["memory", "killed", "process_lost", "stalled", "other"])
def test_what_is_fresh_begins_anew_once(failure: Failure, task: MakeTask) -> None:
    """What is lost before it has begun may still have the checkpoint of an earlier call."""
    for largest_batch in (2, None):
        job = task("row", fresh=True, runs_per_process=2)
        again = retry(TaskOutcome(job, failure, "", True, largest_batch=largest_batch))
        assert again is not None
        assert again.task.fresh == (largest_batch is None)


def test_it_is_said_how(task: MakeTask) -> None:
    again = retry(TaskOutcome(task("row", **ALONE), "memory", "", largest_batch=2))
    assert again is not None
    assert again.change == "in micro-batches 1/2 of the usual size"
