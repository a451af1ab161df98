"""How a task that failed is repeated: one step at a time, until nothing is left to try.

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

from dataclasses import dataclass, replace

from ablate.runner.failures import Failure
from ablate.runner.task import Task
from ablate.training.engines import Eager, FullySharded
from ablate.training.engines.requirements import shard_blocker

_EAGER, _SHARDED = Eager.name, FullySharded.name


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended.

    Attributes:
        task: as it was given to a worker.
        failure: the kind of failure; None if the task has left its result.
        reason: of the failure, in one line.
        shared_device: whether anything else was at work on its device meanwhile.
        largest_batch: sentences in the largest batch that it worked on; None if it had not begun
            to work on batches.
    """

    task: Task
    failure: Failure | None = None
    reason: str | None = None
    shared_device: bool = False
    largest_batch: int | None = None


@dataclass(frozen=True)
class Retry:
    """A task to be repeated.

    Attributes:
        task: the next one.
        change: what is different this time, in words.
    """

    task: Task
    change: str


def retry(outcome: TaskOutcome) -> Retry | None:
    """Return how a task is repeated; None if its outcome stands."""
    if outcome.failure is None:
        return None
    has_begun = outcome.largest_batch is not None  # before that, no checkpoint is this attempt's
    task = replace(outcome.task, fresh=outcome.task.fresh and not has_begun)
    if outcome.failure in ("memory", "killed"):
        return _with_more_memory(task, outcome)
    if outcome.failure == "engine":
        return _with_eager(outcome.task, outcome.reason or "")
    if outcome.failure == "process_lost":
        return Retry(task, "in another process")
    if outcome.failure == "stalled":
        return _after_stall(task)
    if task.runs_per_process > 1:
        return Retry(replace(task, isolation="process"), "in a process of its own")
    return None


def _after_stall(task: Task) -> Retry | None:
    """Return the next attempt after a process that had stopped working; None after the second."""
    if task.has_stalled:
        return None
    if task.runs_per_process > 1:
        again = replace(task, has_stalled=True, isolation="process")
        return Retry(again, "in a process of its own")
    return Retry(replace(task, has_stalled=True), "in another process")


def _with_more_memory(task: Task, outcome: TaskOutcome) -> Retry | None:
    """Return the next attempt after lack of memory.

    Signal 9 need not mean lack of memory, so the task is first repeated with whole batches.
    """
    if task.isolation != "device" and (outcome.shared_device or outcome.failure == "killed"):
        return Retry(replace(task, isolation="device"), "alone on its device")
    if outcome.largest_batch is None or task.micro_batch_factor >= outcome.largest_batch:
        return None
    if task.n_devices > 1 and task.engine != _SHARDED and not shard_blocker(task.training):
        changes = {"engine": _SHARDED, "engine_note": f"not {task.engine}: out of memory"}
        return Retry(task.with_fallbacks(changes), "with its weights split over its devices")
    factor = 2 * task.micro_batch_factor
    divided = task.with_fallbacks({"micro_batch_factor": factor})
    return Retry(divided, f"in micro-batches 1/{factor} of the usual size")


def _with_eager(task: Task, reason: str) -> Retry | None:
    if task.engine == _EAGER or task.n_devices > 1:
        return None  # one device would draw other dropout masks than several
    changes = {"engine": _EAGER, "engine_note": f"not {task.engine}: {reason}"}
    again = task.with_fallbacks(changes)
    is_fresh = task.fresh and again.key != task.key  # the other run's result is still there
    return Retry(replace(again, fresh=is_fresh), "in a fresh process with the eager engine")
