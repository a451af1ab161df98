"""Which failures are lack of memory, and how failed tasks are repeated, as a table."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ablate.errors import DataError, DivergedError, EngineError
from ablate.runner.failures import (
    TaskOutcome,
    failure_of,
    failure_of_exit,
    reason_of,
    retry,
    status_of,
)
from ablate.runner.task import Failure
from tests.runner.conftest import MakeTask

ALLOCATOR = "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate"


def _from(error: Exception, cause: BaseException | None) -> Exception:
    """Return an error as it is after ``raise error from cause``."""
    error.__cause__ = cause
    return error


def _while(error: Exception, context: BaseException) -> Exception:
    """Return an error as it is when it is raised while another one is handled."""
    error.__context__ = context
    return error


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
CASES = [
    (MemoryError(), "memory", "oom"),
    (FULL, "memory", "oom"),
    (RuntimeError(f"{ALLOCATOR} memory: you tried to allocate 8 bytes."), "memory", "oom"),
    (RuntimeError("CUDA error: out of memory\nCompile with"), "memory", "oom"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"), "memory", "oom"),
    (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory", "oom"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "other", "failed"),
    (RuntimeError("The size of tensor a (3) must match"), "other", "failed"),
    (ValueError("Cannot allocate memory"), "other", "failed"),
    (DataError("no network"), "other", "failed"),
    (DivergedError("the loss of step 3 is nan"), "other", "diverged"),
    (EngineError("could not be captured"), "engine", "failed"),
    (_from(EngineError("could not be captured"), ValueError("shape")), "engine", "failed"),
    # A capture that ran out of memory is not one that cannot be made
    (_from(EngineError("could not be captured"), FULL), "memory", "oom"),
    (_from(EngineError("x"), _while(RuntimeError("capture failed"), FULL)), "memory", "oom"),
    (_while(RuntimeError("operation failed due to a previous error"), FULL), "memory", "oom"),
    (_from(_while(RuntimeError("a reason of its own"), FULL), None), "other", "failed"),
]


@pytest.mark.parametrize(("error", "failure", "status"), CASES)
def test_the_kind_of_an_exception(error: Exception, failure: str, status: str) -> None:
    assert (failure_of(error), status_of(error)) == (failure, status)


def test_real_allocations_that_fail_are_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(2**60, dtype=torch.uint8)
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(2**60, dtype=np.uint8)
    with pytest.raises(MemoryError) as of_python:
        bytes(2**60)
    assert [failure_of(each.value) for each in (of_torch, of_numpy, of_python)] == ["memory"] * 3


@pytest.mark.parametrize(
    ("status", "log", "failure"),
    [
        (-9, "", "killed"),
        (-15, "", "other"),
        (1, "MemoryError", "other"),  # it would have said so itself
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
        (-6, "memory allocation of 4096 bytes failed", "memory"),
        (-6, "pure virtual method called", "other"),
    ],
)
def test_the_kind_of_an_exit(status: int, log: str, failure: str) -> None:
    assert failure_of_exit(status, log) == failure


def test_a_reason_is_one_line_with_its_type_unless_it_is_our_own() -> None:
    assert reason_of(RuntimeError("first\nsecond")) == "RuntimeError: first"
    assert reason_of(EngineError("could not be captured")) == "could not be captured"
    assert reason_of(MemoryError()) == "MemoryError"
    assert reason_of(DivergedError()) == "DivergedError"


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
        ("engine", {"engine": "compile", "spec": {"devices_per_run": 2}}, False, 40, None),
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


def test_what_is_fresh_is_not_the_stored_run_of_the_eager_engine(task: MakeTask) -> None:
    job = task("row", engine="compile", eager_key="eager", fresh=True)
    again = retry(TaskOutcome(job, "engine", "no luck", largest_batch=2))
    assert again is not None
    assert (again.task.key, again.task.fresh) == ("eager", True)
