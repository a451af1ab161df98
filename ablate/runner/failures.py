"""Failures of tasks: which kind an exception or an exit status is, and how the task is repeated.

One thing is changed at a time, until nothing is left to try:

    out of memory   alone on its device
                    with its weights split over its devices, if it has several
                    in micro-batches 1/2, 1/4, ... of the usual size, down to single sentences
    engine          in a fresh process, with the eager engine, unless it has several devices
    stalled         once, in another process; in one of its own, if it shared one
    other           in a process of its own, if it shared one

In micro-batches, or with split weights, a run keeps its identity. With the eager engine it is the
run that ``--engine eager`` makes, and is stored as that one, since random numbers may be drawn in
another way. The record holds the fallbacks, and tables mention them.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ablate.errors import (
    AblateError,
    DivergedError,
    EngineError,
    KilledError,
    RunError,
    first_line,
    first_line_with_type,
)
from ablate.runner.task import Failure, Task
from ablate.training.engines import Eager, FullySharded
from ablate.training.engines.factory import shard_blocker

_OUT_OF_MEMORY = (
    "can't allocate memory",  # PyTorch, c10/core/impl/alloc_cpu.cpp
    "Cannot allocate memory",  # the C library's message for ENOMEM, inside other messages
    "CUDA error: out of memory",  # of the driver, for memory not from PyTorch's allocator
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""Parts of messages of a `RuntimeError`: PyTorch has no type for most kinds of lack of memory."""

_ABORT_MESSAGES = ("std::bad_alloc", "memory allocation of")
"""Parts of what C++ and Rust print before they abort a process for lack of memory."""

EXIT_STATUS: dict[Failure, int] = {"memory": 4, "killed": 5}
"""With which a first rank ends because another one did so, if a retry depends on it."""


class RankLostError(RunError):
    """Another rank of the run has ended early."""

    def __init__(self, reason: str, failure: Failure) -> None:
        super().__init__(reason)
        self.failure = failure


def failure_of(error: BaseException) -> Failure:
    """Return what kind of failure an exception is; lack of memory may be the cause of another."""
    if isinstance(error, RankLostError):
        return error.failure
    if any(isinstance(each, KilledError) for each in _chain(error)):
        return "killed"
    if any(_is_out_of_memory(each) for each in _chain(error)):
        return "memory"
    if isinstance(error, EngineError):
        return "engine"
    return "other"


def failure_of_exit(status: int, log: str) -> Failure:
    """Return what kind of failure ended a process."""
    if -status == signal.SIGKILL:
        return "killed"
    if -status == signal.SIGABRT and any(text in log for text in _ABORT_MESSAGES):
        return "memory"
    return next((failure for failure, own in EXIT_STATUS.items() if own == status), "other")


def status_of(error: BaseException) -> str:
    """Return the status of a run that ended with an exception, as records have it."""
    if isinstance(error, DivergedError):
        return "diverged"
    return "oom" if failure_of(error) in ("memory", "killed") else "failed"


def reason_of(error: BaseException) -> str:
    """Return an exception in one line, with its type unless the type is one of this package."""
    return first_line(error) if isinstance(error, AblateError) else first_line_with_type(error)


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended."""

    task: Task  # as it was given to a worker
    failure: Failure | None = None  # the kind of failure; None if the task has left its result
    reason: str | None = None  # of the failure, in one line
    shared_device: bool = False  # whether anything else was at work on its device meanwhile
    # sentences in the largest batch that it worked on; None if it had not begun to work on batches
    largest_batch: int | None = None


@dataclass(frozen=True)
class Retry:
    """A task to be repeated, and what is different this time, in words."""

    task: Task
    change: str


def retry(outcome: TaskOutcome) -> Retry | None:
    """Return how a task is repeated; None if its outcome stands."""
    has_begun = outcome.largest_batch is not None  # before that, no checkpoint is this attempt's
    task = replace(outcome.task, fresh=outcome.task.fresh and not has_begun)
    if outcome.failure in ("memory", "killed"):
        return _with_more_memory(task, outcome)
    if outcome.failure == "engine":
        return _with_eager(outcome.task, outcome.reason or "")
    if outcome.failure == "process_lost":
        return Retry(task, "in another process")
    is_stalled = outcome.failure == "stalled"
    if outcome.failure is None or (is_stalled and task.has_stalled):
        return None
    again = replace(task, has_stalled=task.has_stalled or is_stalled)
    if task.runs_per_process > 1:
        return Retry(replace(again, isolation="process"), "in a process of its own")
    return Retry(again, "in another process") if is_stalled else None


def _with_more_memory(task: Task, outcome: TaskOutcome) -> Retry | None:
    """Signal 9 need not mean lack of memory, so the task is first repeated with whole batches."""
    if task.isolation != "device" and (outcome.shared_device or outcome.failure == "killed"):
        return Retry(replace(task, isolation="device"), "alone on its device")
    if outcome.largest_batch is None or task.micro_batch_factor >= outcome.largest_batch:
        return None
    sharded = FullySharded.name
    if task.n_devices > 1 and task.engine != sharded and not shard_blocker(task.training):
        changes = {"engine": sharded, "engine_note": f"not {task.engine}: out of memory"}
        return Retry(task.with_fallbacks(changes), "with its weights split over its devices")
    factor = 2 * task.micro_batch_factor
    divided = task.with_fallbacks({"micro_batch_factor": factor})
    return Retry(divided, f"in micro-batches 1/{factor} of the usual size")


def _with_eager(task: Task, reason: str) -> Retry | None:
    if task.engine == Eager.name or task.n_devices > 1:
        return None  # one device would draw other dropout masks than several
    changes = {"engine": Eager.name, "engine_note": f"not {task.engine}: {reason}"}
    again = task.with_fallbacks(changes)
    is_fresh = task.fresh and again.key != task.key  # the other run's result is still there
    return Retry(replace(again, fresh=is_fresh), "in a fresh process with the eager engine")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)
