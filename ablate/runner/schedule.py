"""The queue: what is missing, in which order, and what becomes of a worker that dies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ablate.runner.devices import Device
from ablate.runner.packing import TaskGroup, one_per_process, pack_tasks
from ablate.runner.pool import WORKER, Pool, WorkerListener
from ablate.runner.probe import n_rounds_of
from ablate.runner.provenance import now
from ablate.runner.task import Task
from ablate.store import FINISHED, Store

FEWEST_ROUNDS, MOST_ROUNDS = 2, 9
"""How often each row is measured: it ends early when a row has taken `_ENOUGH_S` seconds."""
_ENOUGH_S = 8.0  # after the first round, which is slow to begin


class ProgressListener(WorkerListener, Protocol):
    """Whoever wants to know how the queue is getting on."""

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        """Learn what comes next, if that is new, and how many of it go on at the same time."""

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        """Learn how a task ended."""


def schedule(
    tasks: Iterable[Task],
    worker_slots: Sequence[Device],
    store: Store,
    listener: ProgressListener,
    command: Sequence[str] = WORKER,
    runs_per_process: int | None = None,
) -> None:
    """Do what is missing: first probe the rows, by turns, each alone on its device, then train.

    A run that has finished before, in whatever experiment, is not repeated unless it is to be
    fresh. A run that fails, or whose worker dies, leaves a record that says so, and the others
    go on; if it shared the process, it is tried again alone.

    Args:
        tasks: the training runs wanted.
        worker_slots: one device for each process that may be at work at the same time.
        store: of records and probes.
        listener: is told what happens.
        command: starts a worker.
        runs_per_process: runs that share a process; by default what the probe of a row advises.

    Raises:
        KeyboardInterrupt: when the user stops it; by then every worker has ended.
    """
    todo = missing(tasks, store)
    with Pool(worker_slots, listener, command) as pool:
        _measure(_unmeasured(todo, store), pool, listener, len(set(worker_slots)))
        shared = pack_tasks(
            todo, len(worker_slots), lambda task: runs_per_process or advised(task, store)
        )
        failed = _train(shared, pool, store, listener, len(worker_slots))
        again = [replace(task, fresh=False) for task in failed if task.runs_per_process > 1]
        if again:
            _train(one_per_process(again), pool, store, listener, len(worker_slots))


def _measure(rows: Sequence[Task], pool: Pool, listener: ProgressListener, n_devices: int) -> None:
    """Measure ``rows`` by turns, forwards and backwards; one that fails gets no more of them."""
    occasion, until = now(), float("inf")
    left = {task.key: replace(task, occasion=occasion) for task in rows}
    by_turns = ", which take turns" if len(rows) > 1 else ""
    what = f"measuring the speed and memory of {_count(rows, 'row')}{by_turns}"
    for number in range(MOST_ROUNDS):
        if number == 1:
            until = time.monotonic() + _ENOUGH_S * len(rows) / n_devices
        if number >= FEWEST_ROUNDS and time.monotonic() > until:
            break
        turns = [replace(task, round=number) for task in left.values()]
        listener.expect(turns, what if number == 0 else "", n_devices)
        for ended in pool.run(one_per_process(turns[:: -1 if number % 2 else 1]), is_alone=True):
            listener.ended(ended.task, ended.reason or "done", is_good=ended.reason is None)
            if ended.reason is not None:
                del left[ended.task.key]


def _train(
    shared: Sequence[TaskGroup],
    pool: Pool,
    store: Store,
    listener: ProgressListener,
    n_worker_slots: int,
) -> list[Task]:
    """Do all runs; return those that have failed."""
    tasks = [task for group in shared for task in group]
    n_at_once = min(len(tasks), n_worker_slots * max(map(len, shared), default=1))
    listener.expect(tasks, f"training {_count(tasks, 'run')}, {n_at_once} at a time", n_at_once)
    failed: list[Task] = []
    for ended in pool.run(shared):
        record = _settle(ended.task, ended.reason, store)
        listener.ended(ended.task, outcome(record), is_good=record["status"] == "done")
        if not is_finished(record):
            failed.append(ended.task)
    return failed


def advised(task: Task, store: Store) -> int:
    """Return how many such runs at once a device has room for, as far as is known."""
    measured = store.load_probe(task.probe) or {}
    return int(measured.get("runs_at_once", 1))


def missing(tasks: Iterable[Task], store: Store) -> list[Task]:
    """Return the tasks that still have to be done, each run once.

    Raises:
        StoreError: if a record cannot be read.
    """
    distinct: dict[str, Task] = {}
    for task in tasks:
        distinct.setdefault(task.key, task)
    return [
        task for task in distinct.values() if task.fresh or not is_finished(store.load(task.key))
    ]


def is_finished(record: dict[str, Any] | None) -> bool:
    """Return whether a run with this record would only end the same way again."""
    return record is not None and record["status"] in FINISHED


def outcome(record: dict[str, Any]) -> str:
    """Return how a run ended, in a few words."""
    if record["status"] != "done":
        return f"{record['status']}: {record['error']}"
    scores = (f"{name} {of_set['bleu']:.2f}" for name, of_set in record["test"].items())
    return f"done, BLEU {', '.join(scores)}"


def _unmeasured(tasks: Iterable[Task], store: Store) -> list[Task]:
    """Return a probe of every row if one needs it: by turns alone can they be compared."""
    rows: dict[str, Task] = {}
    for task in tasks:
        rows.setdefault(task.probe, task)
    if all(
        not task.fresh and n_rounds_of(store.load_probe(key)) >= FEWEST_ROUNDS
        for key, task in rows.items()
    ):
        return []
    return [replace(task, action="probe", key=key) for key, task in rows.items()]


def _settle(task: Task, reason: str | None, store: Store) -> dict[str, Any]:
    """Return the record that a worker left, or write the one that it could not."""
    record = store.load(task.key)
    if reason is None and record is not None:
        return record
    failure = task.record("failed", reason or "the worker left no record", finished=now())
    store.save(failure)
    return failure


def _count(tasks: Sequence[Task], thing: str) -> str:
    return f"{len(tasks)} {thing}{'' if len(tasks) == 1 else 's'}"
