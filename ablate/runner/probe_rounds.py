"""Probing rows in turns: which rows are measured, how often; their speeds in the records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.config import TrainingSpec
from ablate.runner.backends.contract import Backend, WorkerPool
from ablate.runner.devices import Device
from ablate.runner.failures import TaskOutcome, retry
from ablate.runner.listener import ProgressListener
from ablate.runner.match import target_tokens
from ablate.runner.placement import one_per_process
from ablate.runner.pool import GRACE_S
from ablate.runner.probe import new_session, record_sections, sessions_of
from ablate.runner.provenance import other_machine
from ablate.runner.task import Task
from ablate.store import Store, is_finished
from ablate.wording import counted

FEWEST_ROUNDS, MOST_ROUNDS = 2, 9
"""Bounds of how often each row is measured; between them the time budget decides."""
PROBE_SECONDS = 8.0  # per row, without the first round, in which processes start
PROBE_SHARE = 0.1  # of the training time of all runs
TRAIN_SPEED = "train_target_tokens_per_second"
"""The key of a probe for the speed of training."""


def rows_to_probe(tasks: Sequence[Task], store: Store, device: Device) -> list[Task]:
    """Return probes of the rows without a session in common with the baseline, and of the baseline.

    Rows whose runs are done count only if they were executed on the machine of ``device``.
    """

    def is_measurable(task: Task) -> bool:
        record = None if task.fresh else store.load(task.key)
        if not is_finished(record):
            return True
        return record["status"] == "done" and other_machine(record, device) is None

    rows = _probes(filter(is_measurable, tasks))
    sessions = {
        key: set() if task.fresh else sessions_of(store.load_probe(key), FEWEST_ROUNDS)
        for key, task in rows.items()
    }
    baseline = next(iter(rows), "")
    lacking = [key for key in rows if not sessions[key] & sessions[baseline]]
    return [rows[key] for key in dict.fromkeys((baseline, *lacking))] if lacking else []


def rounds_of(rows: Sequence[Task], n_rounds: int) -> list[tuple[Task]]:
    """Return the probes of all rounds, in the order in which one worker executes them."""
    session = new_session()
    return [
        (replace(row, session=session, round=number, n_rounds=n_rounds, runs_per_process=1),)
        for number in range(n_rounds)
        for row in (rows[::-1] if number % 2 else rows)
    ]


def measure(tasks: Iterable[Task], backend: Backend, listener: ProgressListener) -> str:
    """Measure the rows of ``tasks`` in turns, also those that were measured before.

    Returns:
        The session that stands in the probes of the rows that could be measured.
    """
    rows = _probes(tasks)
    with backend.pool(listener, GRACE_S) as pool:
        n_at_once = max(1, len(set(backend.worker_slots)) // most_devices(rows.values()))
        budget = PROBE_SECONDS * len(rows)
        attempts = measure_in_turns(list(rows.values()), pool, listener, n_at_once, lambda: budget)
    return next(attempt.session for attempt in attempts.values())


def measure_in_turns(
    rows: Sequence[Task],
    pool: WorkerPool,
    listener: ProgressListener,
    n_devices: int,
    budget: Callable[[], float],
) -> dict[str, Task]:
    """Measure ``rows`` round-robin, in reverse order every other round.

    In the first round a row that fails is repeated as `retry` says, and later rounds use the task
    that succeeded; a row that fails for good is left out of them. The duration of the second round
    decides how many rounds there will be.

    Args:
        rows: a probe of each.
        pool: of workers.
        listener: is called with what happens.
        n_devices: rows measured at the same time.
        budget: called after the first round: seconds for the others, summed over devices.

    Returns:
        The last attempt at each row in the first round, by its key.
    """
    session = new_session()
    attempts = {task.key: replace(task, session=session) for task in rows}
    remaining = list(attempts)  # keys of the rows that have not failed
    by_turns = ", which take turns" if len(rows) > 1 else ""
    what = f"measuring the speed and memory of {counted(len(rows), 'row')}{by_turns}"
    number, n_rounds, seconds = 0, 0, 0.0
    while rows and number < (n_rounds or FEWEST_ROUNDS):
        began = time.monotonic()
        todo = [replace(attempts[key], round=number, n_rounds=n_rounds) for key in remaining]
        while todo:
            listener.expect(todo, what, n_devices)
            what = ""
            retries: dict[str, Task] = {}
            groups = one_per_process(todo[::-1] if number % 2 else todo)
            for outcome in pool.run(groups, is_exclusive=True, shares_cores=False):
                retries |= _retry_probe(outcome, remaining, listener)
            attempts |= retries
            todo = list(retries.values())
        if number == 0:
            seconds = budget() / n_devices
        elif not n_rounds:
            n_rounds = rounds_within(seconds, time.monotonic() - began)
        number += 1
    return attempts


def rounds_within(seconds: float, of_one: float) -> int:
    """Return how many rounds are made, of which the second took ``of_one`` of these seconds."""
    n_more = (seconds - of_one) / max(of_one, 1e-9)
    return FEWEST_ROUNDS + math.ceil(min(max(0.0, n_more), MOST_ROUNDS - FEWEST_ROUNDS))


def budget(tasks: Sequence[Task], store: Store, probe_seconds: float | None) -> float:
    """Return how many seconds the rounds after the first may take, summed over devices."""
    n_rows = len({task.probe for task in tasks})
    if probe_seconds is not None:
        return probe_seconds * n_rows
    training = sum(seconds_of(task, store.load_probe(task.probe)) for task in tasks)
    return min(PROBE_SECONDS * n_rows, PROBE_SHARE * training)


def lacks_speed(task: Task, store: Store, device: Device) -> bool:
    """Return whether a record lacks the speed that the same machine has measured since."""
    record = store.load(task.key)
    if record is None or record["status"] != "done" or "speed" in record:
        return False
    return store.load_probe(task.probe) is not None and other_machine(record, device) is None


def add_speeds(tasks: Iterable[Task], store: Store, device: Device) -> None:
    """Add measured speeds to the records that lack them."""
    for task in tasks:
        if lacks_speed(task, store, device):
            _add_speed(task, store)


def update_speeds(
    tasks: Iterable[Task], attempts: Mapping[str, Task], store: Store, device: Device
) -> None:
    """Write the speeds of rows that were measured now into the records of their earlier runs.

    Runs of another machine keep the speeds that were measured there.
    """
    for task in tasks:
        record, probe = store.load(task.key), store.load_probe(task.probe)
        is_new = probe is not None and probe.get("session") == attempts[task.probe].session
        is_done = record is not None and record["status"] == "done" and not task.fresh
        if record is not None and is_done and is_new and other_machine(record, device) is None:
            _add_speed(task, store)


def training_tokens(training: TrainingSpec, probe: Mapping[str, Any]) -> float:
    """Return how many target tokens a run trains on, with batches as its row's probe counted."""
    return target_tokens(training, probe["target_tokens_per_batch"], probe["batches_per_epoch"])


def training_seconds(training: TrainingSpec, probe: Mapping[str, Any]) -> float:
    """Return how long a run trains at the speed that its row's probe has measured."""
    return training_tokens(training, probe) / probe[TRAIN_SPEED]


def seconds_of(task: Task, probe: Mapping[str, Any] | None) -> float:
    """Return how long a task trains by its row's probe; infinite if that has no speed."""
    if not probe or TRAIN_SPEED not in probe:
        return math.inf
    return training_seconds(task.training, probe)


def most_devices(tasks: Iterable[Task]) -> int:
    """Return how many devices a run has at most."""
    return max((task.n_devices for task in tasks), default=1)


def _retry_probe(
    outcome: TaskOutcome, remaining: list[str], listener: ProgressListener
) -> dict[str, Task]:
    """Announce how a probe ended; if it failed for good, remove its key from ``remaining``."""
    task = outcome.task
    is_lost = outcome.failure in ("process_lost", "stalled")
    again = retry(outcome) if task.round == 0 or is_lost else None
    text = outcome.reason or "done"
    if again is not None:
        text += f"; once more, {again.change}"
    elif outcome.failure is not None:
        remaining.remove(task.key)
    listener.ended(task, text, is_good=outcome.failure is None)
    return {} if again is None else {task.key: again.task}


def _probes(tasks: Iterable[Task]) -> dict[str, Task]:
    """Return a probe of every row, by its key."""
    rows: dict[str, Task] = {}
    for task in tasks:
        probe = replace(task, action="probe", key=task.probe, eager_key="")
        rows.setdefault(task.probe, probe)
    return rows


def _add_speed(task: Task, store: Store) -> None:
    """Write the speed of a row into the record of a run that is done."""
    with store.lock(task.key):
        record = store.load(task.key)
        if record is not None:  # which another call may have removed since
            store.save({**record, **record_sections(store.load_probe(task.probe) or {})})
