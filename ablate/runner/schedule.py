"""The queue: what is missing, in which order, and what becomes of a worker that dies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ablate.runner.devices import Device
from ablate.runner.pool import WORKER, Pool, Watcher
from ablate.runner.provenance import now
from ablate.runner.task import Task
from ablate.store import FINISHED, Store


class Audience(Watcher, Protocol):
    """Whoever wants to know how the queue is getting on."""

    def expect(self, tasks: Sequence[Task], what: str) -> None:
        """Learn what comes next."""

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        """Learn how a task ended."""


def schedule(
    tasks: Iterable[Task],
    places: Sequence[Device],
    store: Store,
    audience: Audience,
    command: Sequence[str] = WORKER,
) -> None:
    """Do what is missing: first probe the rows, each alone on its device, then train.

    A run that has finished before, in whatever experiment, is not repeated unless it is to be
    fresh. A run that fails, or whose worker dies, leaves a record that says so, and the others
    go on.

    Args:
        tasks: the training runs wanted.
        places: one device for each run that may go on at the same time.
        store: of records and probes.
        audience: is told what happens.
        command: starts a worker.

    Raises:
        KeyboardInterrupt: when the user stops it; by then every worker has ended.
    """
    todo = missing(tasks, store)
    probes = _probes(todo, store)
    audience.expect(probes, f"measuring the speed and memory of {_count(probes, 'row')}")
    with Pool(dict.fromkeys(places), audience, command) as pool:
        for ended in pool.run(probes):
            audience.ended(ended.task, ended.reason or "done", is_good=ended.reason is None)
    audience.expect(todo, f"training {_count(todo, 'run')}, {len(places)} at a time")
    with Pool(places, audience, command) as pool:
        for ended in pool.run(todo):
            record = _settle(ended.task, ended.reason, store)
            audience.ended(ended.task, outcome(record), is_good=record["status"] == "done")


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


def _probes(tasks: Iterable[Task], store: Store) -> list[Task]:
    rows: dict[str, Task] = {}
    for task in tasks:
        rows.setdefault(task.probe, task)
    return [
        replace(task, action="probe", key=key)
        for key, task in rows.items()
        if task.fresh or store.load_probe(key) is None
    ]


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
