"""The schedule: which runs are missing, in which order they are executed, and retries."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ablate.runner.backends.contract import Backend, WorkerPool
from ablate.runner.devices import Device, memory_mib
from ablate.runner.failures import TaskOutcome, retry
from ablate.runner.pool import USABLE, least_memory, priority
from ablate.runner.probe import (
    FEWEST_ROUNDS,
    add_speeds,
    budget,
    lock_probes,
    measure_in_turns,
    n_parallel,
    rounds_of,
    rows_to_probe,
    seconds_of,
)
from ablate.runner.provenance import now
from ablate.runner.run import micro_batching
from ablate.runner.streams import MOST_ON_CUDA
from ablate.runner.task import ProgressListener, Task, TaskGroup, one_per_process
from ablate.store import Store, is_finished
from ablate.wording import counted


@dataclass(frozen=True)
class Limits:
    """Limits of a schedule."""

    runs_per_process: int | None = None  # the most; by default as the row's probe advises
    # how long each row is measured; by default `PROBE_SECONDS`, or `PROBE_SHARE` of the training
    # time if that is less
    probe_seconds: float | None = None
    probes: bool = True  # whether speed and memory are measured at all


DEFAULT = Limits()
Record = dict[str, Any]
Describe = Callable[[Task, Record], str]
"""Is called with the record of each run that ends; returns in words how it ended."""


def schedule(
    tasks: Iterable[Task],
    backend: Backend,
    store: Store,
    listener: ProgressListener,
    limits: Limits = DEFAULT,
    describe: Describe = lambda _, record: outcome_text(record),
) -> None:
    """Execute missing runs: probe rows in turns, each alone on its device, then train.

    Speeds are compared within a session. So a row that has no session in common with the baseline
    is measured again together with it, even if its runs are done; their records get the new speeds.
    Calls that have a baseline in common measure one after another, and each row once.

    A run that has finished before, in any experiment, is not repeated unless its task is `fresh`.
    One that fails is repeated as `retry` says; if it fails for good, its record says so. One that
    another call is at work on comes after all others, and then waits for that call.

    The ``tasks`` are the requested training runs, done or not, those of the baseline first. When a
    user stops the schedule, every worker has ended by the time of the `KeyboardInterrupt`.
    """
    all_tasks = [_as_replaced(task, store) for task in tasks]
    worker_slots = backend.worker_slots
    with backend.pool(listener) as pool:
        _rejoin(all_tasks, backend, store, listener, describe)
        todo, later = _in_turn(missing(all_tasks, store))
        for task in (*todo, *later):
            for key in filter(None, (task.key, task.eager_key)):
                store.refuse_links(key)
        rows = rows_to_probe(all_tasks, store, worker_slots[0]) if limits.probes else []
        first, after = ([_as_known(task, store) for task in tasks] for tasks in (todo, later))
        chains = _chains(_pack(first, worker_slots, store, limits), after)
        backend.detach([rounds_of(rows, FEWEST_ROUNDS), *chains])
        attempts = {}
        if rows:
            with lock_probes(rows, listener):  # another call may have measured them meanwhile
                rows = rows_to_probe(all_tasks, store, worker_slots[0])
                n_at_once = n_parallel(all_tasks, set(worker_slots))
                seconds = partial(budget, rows, all_tasks, store, limits.probe_seconds)
                attempts = measure_in_turns(rows, pool, listener, n_at_once, seconds)
            add_speeds(all_tasks, store, worker_slots[0])
        todo = [_as_probed(task, attempts, store) for task in todo]
        later = [_as_probed(task, attempts, store) for task in later]
        what = "training"
        while todo or later:
            if not todo:
                what, todo, later = "decoding", later, []
            groups = _pack(todo, worker_slots, store, limits)
            distinct = [task for group in groups for task in group]
            is_alone = all(task.is_alone for task in distinct)
            n_groups = n_parallel(distinct, set(worker_slots) if is_alone else worker_slots)
            n_at_once = min(len(distinct), n_groups * max(map(len, groups)))
            words = f"{what} {counted(len(distinct), 'run')}, {n_at_once} at a time"
            listener.expect(distinct, words, n_at_once)
            todo = _train(groups, pool, store, listener, describe)
            what = "waiting for" if all(task.waits for task in todo) else "repeating"


def _as_replaced(task: Task, store: Store) -> Task:
    """Return the task with the eager engine if an earlier call has replaced its run by that one."""
    record = None if task.fresh else store.load(task.key)
    is_replaced = record is not None and record.get("replaced_by") == task.eager_key != ""
    return task.with_fallbacks(record or {}) if is_replaced else task


def _rejoin(
    tasks: Sequence[Task],
    backend: Backend,
    store: Store,
    listener: ProgressListener,
    describe: Describe,
) -> None:
    """Follow tasks that earlier calls left running; add speeds measured after their runs."""
    for outcome in backend.reattach(tasks, listener):
        record = store.load(outcome.task.key) if outcome.task.action == "train" else None
        is_good = outcome.failure is None and (record is None or record["status"] == "done")
        text = describe(outcome.task, record) if record else outcome.reason or "done"
        listener.ended(outcome.task, text, is_good=is_good)
    add_speeds(tasks, store, backend.worker_slots[0])


def _chains(groups: Sequence[TaskGroup], later: Sequence[Task]) -> list[list[TaskGroup]]:
    """Return groups with, after each of them, the tasks that take the weights of one of its."""
    chains = [[group] for group in groups]
    for task in later:
        keys = set(task.trained_alike)
        next(chain for chain in chains if keys & {t.key for t in chain[0]}).append((task,))
    return chains


def _as_known(task: Task, store: Store) -> Task:
    """Return a task with the fallbacks of its row's last probe, if it stays the same run."""
    again = task.with_fallbacks(store.load_probe(task.probe) or {})
    return again if again.key == task.key else task


def _as_probed(task: Task, attempts: Mapping[str, Task], store: Store) -> Task:
    """Return a task with the fallbacks of its row's probe, with which all seeds are executed."""
    attempt = attempts.get(task.probe)
    probed_as = attempt.fallbacks if attempt else store.load_probe(task.probe) or {}
    again = _note_replacement(task, task.with_fallbacks(probed_as), store)
    return replace(again, waits=False)


def _note_replacement(task: Task, again: Task, store: Store) -> Task:
    """Return ``again``; if its hash is another one, note that in the record of ``task``.

    If another call has finished the run of ``task`` meanwhile, that one stands, and is returned.
    """
    if again.key == task.key:
        return again
    with store.lock(task.key, should_stop=lambda: True):
        record = store.load(task.key)
        if is_finished(record) and not task.fresh:
            return task
        if record is None or record["status"] != "failed":
            record = task.record("failed", again.engine_note, finished=now())
        note = {"engine": again.engine, "engine_note": again.engine_note}
        store.save({**record, **note, "replaced_by": again.key})
    return again


def _pack(
    tasks: Sequence[Task], worker_slots: Sequence[Device], store: Store, limits: Limits
) -> list[TaskGroup]:
    """Return the groups of tasks that share a process, in the order of `priority`."""
    probes = {key: store.load_probe(key) or {} for key in {task.probe for task in tasks}}
    of_rows = {(task.experiment, task.variant): task for task in tasks}
    seconds = {row: seconds_of(task, probes[task.probe]) for row, task in of_rows.items()}
    tasks_with_needs = []
    for task in tasks:
        probe, duration = probes[task.probe], seconds[task.experiment, task.variant]
        peaks = [probe[key] for key in ("train_peak_mib", "decode_peak_mib") if key in probe]
        needed = max(peaks, default=math.inf)
        tasks_with_needs.append(replace(task, memory_mib=needed, seconds=duration))
    tasks_with_needs.sort(key=lambda task: priority((task,)))
    if limits.runs_per_process == 1 or len(tasks) <= 1:
        return one_per_process(tasks_with_needs)
    groups = pack_tasks(
        tasks_with_needs,
        len(worker_slots),
        lambda task: limits.runs_per_process or int(probes[task.probe].get("runs_at_once", 1)),
        {memory_mib(device) for device in worker_slots},
    )
    return sorted(groups, key=priority)


def pack_tasks(
    tasks: Sequence[Task],
    n_worker_slots: int,
    runs_at_once: Callable[[Task], int],
    memories: Collection[float],
) -> list[TaskGroup]:
    """Return the groups of tasks that share a process, in the order of ``tasks``.

    As many runs share a process, and with it a GPU, as ``runs_at_once`` (how many runs like a task
    are faster side by side) and memory allow: a group fits into `USABLE` of every device that has
    room for any of its tasks; unknown needs count as fitting. No group that may be at work at the
    same time gets more than its share.
    """
    n_most = min(-(-len(tasks) // n_worker_slots), MOST_ON_CUDA)

    def may_share(group: Sequence[Task]) -> bool:
        room = USABLE * min(least_memory(task.memory_mib, memories) for task in group)
        return (
            len(group) <= min(n_most, *map(runs_at_once, group))
            and sum(task.memory_mib for task in group if task.memory_mib < math.inf) <= room
            and all(task.isolation == "none" and task.plugins == group[0].plugins for task in group)
            and all(task.n_devices == 1 for task in group)
        )

    groups: list[list[Task]] = []
    for task in tasks:
        if groups and may_share([*groups[-1], task]):
            groups[-1].append(task)
        else:
            groups.append([task])
    return [tuple(replace(task, runs_per_process=len(group)) for task in group) for group in groups]


def _train(
    groups: Sequence[TaskGroup],
    pool: WorkerPool,
    store: Store,
    listener: ProgressListener,
    describe: Describe,
) -> list[Task]:
    """Execute runs; return the next attempts at those that failed, or that another call has."""
    todo = []
    for outcome in pool.run(groups):
        if outcome.failure == "held":  # the other call writes its record
            todo.append(replace(outcome.task, waits=True))
            listener.ended(outcome.task, f"{outcome.reason}: after the others", is_good=True)
            continue
        record = _final_record(outcome, store)
        again = None if is_finished(record) else retry(outcome)
        text = describe(outcome.task, record)
        if again is not None:
            todo.append(_note_replacement(outcome.task, again.task, store))
            text += f"; once more, {again.change}"
        listener.ended(outcome.task, text, is_good=record["status"] == "done")
    return todo


def _in_turn(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Return the tasks that train, and those that take the weights of one of them.

    Of runs that begin again, only weights that are made again are taken.
    """
    first: list[Task] = []
    later: list[Task] = []
    keys: set[str] = set()
    for task in tasks:
        made = tuple(key for key in task.trained_alike if key in keys)
        if made:
            later.append(replace(task, trained_alike=made))
        else:
            first.append(replace(task, trained_alike=()) if task.fresh else task)
            keys.add(task.key)
    return first, later


def missing(tasks: Iterable[Task], store: Store) -> list[Task]:
    """Return the tasks that have to be executed, each run once."""
    distinct: dict[str, Task] = {}
    for task in tasks:
        distinct.setdefault(task.key, task)
    return [
        task for task in distinct.values() if task.fresh or not is_finished(store.load(task.key))
    ]


def outcome_text(record: Record) -> str:
    """Return how a run ended, in a few words."""
    if record["status"] != "done":
        return f"{record['status']}: {record['error']}"
    scores = (f"{name} {of_set['bleu']:.2f}" for name, of_set in record["test"].items())
    return f"done, BLEU {', '.join(scores)}"


def _final_record(outcome: TaskOutcome, store: Store) -> Record:
    """Return the record that a worker wrote in this attempt; else write that of a failure."""
    task, record = outcome.task, store.load(outcome.task.key)
    if record is not None and is_finished(record) and not task.fresh:
        return record
    if record is not None and (outcome.failure is None or record["error"] == outcome.reason):
        return record
    status = "oom" if outcome.failure in ("memory", "killed") else "failed"
    reason = outcome.reason or "the worker left no record"
    failure = task.record(status, reason, micro_batching=micro_batching(task), finished=now())
    store.save(failure)
    return failure
