"""Speed and memory of a row: measured alone on its device, once per kind of machine.

The speed of a machine changes from minute to minute. So the rows of an experiment take turns, round
after round, and are compared within a round.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from ablate import measuring
from ablate.config import RunSpec, TrainingSpec
from ablate.config.identity import canonical, files_of, plugins_of
from ablate.data.batches import Batches
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import PAD
from ablate.hashing import sha256_of_text
from ablate.record import speed_sessions
from ablate.runner.backends.contract import Backend, WorkerPool
from ablate.runner.devices import Device, n_at_once
from ablate.runner.failures import TaskOutcome, retry
from ablate.runner.match import target_tokens
from ablate.runner.other_ranks import joined_ranks
from ablate.runner.provenance import hardware_of, now, other_machine, versions
from ablate.runner.task import ProgressListener, Report, Task, one_per_process
from ablate.store import Store, is_finished
from ablate.training.ranks import Ranks
from ablate.wording import counted

FEWEST_ROUNDS, MOST_ROUNDS = 2, 9
"""Bounds of how often each row is measured; between them the time budget decides."""
PROBE_SECONDS = 8.0  # per row, without the first round, in which processes start
PROBE_SHARE = 0.1  # of the training time of all runs
TRAIN_SPEED = "train_target_tokens_per_second"
"""The key of a probe for the speed of training."""
_SPEEDS = (TRAIN_SPEED, "decode_sentences_per_second")
_MOST_EARLIER = 7  # sessions that are kept in addition to the latest
_IRRELEVANT = {
    "steps",
    "epochs",
    "target_tokens",
    "schedule",
    "average",
    "evaluate_every",
    "patience",
    "diverged_above",
    "precision",
}
"""Training options without effect on a step: the duration, and what happens between steps.

``average`` is one of them unless it is a moving average, which every step updates.
"""


def probe_key(
    spec: RunSpec, device: Device, precision: str, engine: str, corpus_fingerprint: str
) -> str:
    """Return 16 hex digits for all that the speed and memory of a run depend on."""
    data = canonical(spec)
    training = {k: v for k, v in data["training"].items() if k not in _IRRELEVANT}
    if spec.training.average.ema is not None:
        training["average"] = data["training"]["average"]
    machine = {k: v for k, v in hardware_of(device).items() if k != "threads"}
    content = {
        "spec": {**data, "training": training, "seed": None},
        "precision": precision,
        "engine": engine,
        "hardware": machine,
        "versions": versions(),
    }
    if files := files_of(spec, corpus_fingerprint):
        content["files"] = files
    plugins = plugins_of(spec)
    if plugins:
        content["plugins"] = {path: plugin.identity for path, plugin in plugins.items()}
    return sha256_of_text(json.dumps(content, sort_keys=True))[:16]


def n_rounds_of(probe: Mapping[str, Any] | None) -> int:
    """Return how many rounds of a row have been measured."""
    rounds = probe.get("rounds", {}) if probe else {}
    return min(len(rounds.get(name, ())) for name in _SPEEDS)


def new_session() -> str:
    """Return a name for a session, unique even among calls in the same second."""
    return f"{now()} {uuid4().hex[:4]}"


def sessions_of(probe: Mapping[str, Any] | None, fewest: int) -> set[str]:
    """Return the sessions in which at least ``fewest`` rounds of a row were measured."""
    by_session = speed_sessions(probe).items()
    return {name for name, rounds in by_session if n_rounds_of({"rounds": rounds}) >= fewest}


def record_sections(probe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements of a probe as sections of a record."""
    keys = ("session", "rounds", "earlier", "micro_batch_factor", "engine")
    how = {key: probe[key] for key in keys if key in probe}
    speeds = {key: value for key, value in probe.items() if key.endswith("_per_second")}
    return {
        "speed": {**speeds, **how},
        "memory": {key: value for key, value in probe.items() if key.endswith("_mib")},
    }


def probe_one(task: Task, store: Store, report: Report) -> None:
    """Measure one round of a row, and save the result.

    The first round saves what `measuring.probe` returns, the ``session``, facts about the corpus
    (vocabulary sizes, batches per epoch, mean target tokens per batch), and the task's fallbacks.
    Each further round appends its speeds to the lists in ``rounds`` and updates the medians. Rounds
    of ``earlier`` sessions stay, since the row may share these with other rows.
    """
    spec = RunSpec.model_validate(task.spec)
    prepared = prepare(spec, task.corpus_fingerprint, task.teacher_sha256, report)
    by = spec.training.batch_by
    batches = Batches(prepared.train, spec.training.batch_tokens, PAD, by=by).of_epoch(0, 0)
    largest_batch = max(len(rows) for rows in batches.epoch(spec.seed, 0))
    report("measuring")
    with joined_ranks(task, _follow_probe) as ranks:
        before_training = partial(report, "measuring steps", None, largest_batch)
        measured = _measure(task, prepared, ranks, before_training)
    speeds = {name: measured[name] for name in _SPEEDS}
    if task.round == 0:
        rounds = {name: [speed] for name, speed in speeds.items()}
        facts = {
            "n_src": prepared.tokenizers.vocabulary.n_src,
            "n_tgt": prepared.tokenizers.vocabulary.n_tgt,
            "batches_per_epoch": batches.n_per_epoch,
            "target_tokens_per_batch": batches.mean_tokens,
        }
        earlier = list(speed_sessions(store.load_probe(task.key)).items())[-_MOST_EARLIER:]
        session = {"session": task.session, "rounds": rounds, "earlier": dict(earlier)}
        store.save_probe(task.key, {**measured, **facts, **session, **task.fallbacks})
        return
    before = store.load_probe(task.key) or {}
    if before.get("session") != task.session:
        return  # another process has begun to measure the row anew
    rounds = {name: [*before["rounds"][name], speed] for name, speed in speeds.items()}
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    store.save_probe(task.key, {**before, **medians, "rounds": rounds})


def rows_to_probe(tasks: Sequence[Task], store: Store, device: Device) -> list[Task]:
    """Return probes of rows without a session in common with the baseline, and of the baseline.

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


def lock_probes(rows: Sequence[Task], listener: ProgressListener) -> AbstractContextManager[None]:
    """Keep other calls from measuring rows of the same baseline, the first of ``rows``.

    They would slow this one down if they are on this machine, and replace its rounds by theirs.
    """
    text = "another call measures speed and memory: waiting for it"
    store = Store(rows[0].results)
    return store.lock_probe(rows[0].key, lambda: listener.note(text))


def measure(tasks: Iterable[Task], backend: Backend, listener: ProgressListener) -> str:
    """Measure the rows of ``tasks`` in turns, also those measured before; return the session."""
    rows = list(_probes(tasks).values())
    with backend.pool(listener) as pool:
        n_alone = n_parallel(rows, set(backend.worker_slots))
        with lock_probes(rows, listener):
            seconds = PROBE_SECONDS * len(rows)
            attempts = measure_in_turns(rows, pool, listener, n_alone, lambda: seconds)
    return next(attempt.session for attempt in attempts.values())


def measure_in_turns(
    rows: Sequence[Task],
    pool: WorkerPool,
    listener: ProgressListener,
    n_devices: int,
    budget: Callable[[], float],
) -> dict[str, Task]:
    """Measure ``rows`` round-robin, in reverse order every other round, ``n_devices`` at a time.

    In the first round a row that fails is repeated as `retry` says, and later rounds use the task
    that succeeded; a row that fails for good is left out of them. The duration of the second round
    decides how many rounds there will be: after the first, ``budget`` returns the seconds for the
    others, summed over devices. Returns the last attempt at each row in the first round, by its
    key.
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
            for outcome in pool.run(groups):
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


def budget(
    rows: Sequence[Task], runs: Iterable[Task], store: Store, probe_seconds: float | None
) -> float:
    """Return how many seconds the rounds after the first may take, summed over devices."""
    if probe_seconds is not None:
        return probe_seconds * len(rows)
    probes = {row.key: store.load_probe(row.key) for row in rows}
    training = sum(seconds_of(run, probes[run.probe]) for run in runs if run.probe in probes)
    return min(PROBE_SECONDS * len(rows), PROBE_SHARE * training)


def lacks_speed(task: Task, store: Store, device: Device) -> bool:
    """Return whether a record lacks the latest speed that the same machine has measured.

    It may have been measured for another experiment with this run, or for the tuning of this one;
    and the record may have been written between two of its rounds.
    """
    record, probe = store.load(task.key), store.load_probe(task.probe)
    if record is None or record["status"] != "done" or probe is None:
        return False
    speed = record.get("speed")
    rounds = speed_sessions(speed).get(probe.get("session", ""))
    has_latest = speed is not None and rounds == probe.get("rounds")
    return not has_latest and other_machine(record, device) is None


def add_speeds(tasks: Iterable[Task], store: Store, device: Device) -> None:
    """Add measured speeds to the records that lack them."""
    for task in tasks:
        if lacks_speed(task, store, device):
            with store.lock(task.key):
                record = store.load(task.key)
                if record is not None:  # which another call may have removed since
                    sections = record_sections(store.load_probe(task.probe) or {})
                    store.save({**record, **sections})


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


def n_parallel(tasks: Iterable[Task], worker_slots: Collection[Device]) -> int:
    """Return how many tasks, each alone on its worker slots, are executed at the same time."""
    return n_at_once(worker_slots, max((task.n_devices for task in tasks), default=1))


def _follow_probe(task: Task, ranks: Ranks) -> None:
    _measure(task, prepare(RunSpec.model_validate(task.spec)), ranks, lambda: None)


def _measure(
    task: Task, prepared: Prepared, ranks: Ranks, before_training: Callable[[], None]
) -> dict[str, Any]:
    return measuring.probe(
        RunSpec.model_validate(task.spec),
        prepared,
        torch.device(task.device),
        task.precision,
        task.engine,
        task.micro_batch_factor,
        before_training,
        ranks=ranks,
    )


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
    rows: dict[str, Task] = {}
    for task in tasks:
        probe = replace(task, action="probe", key=task.probe, eager_key="")
        rows.setdefault(task.probe, probe)
    return rows
