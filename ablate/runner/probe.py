"""Speed and memory of a row: measured alone on its device, once per kind of machine.

The speed of a machine changes from minute to minute. So the rows of an experiment take turns, round
after round, and are compared within a round.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from ablate import measuring
from ablate.config import RunSpec
from ablate.config.identity import canonical, files_of, plugins_of
from ablate.data.batches import Batches
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import PAD
from ablate.hashing import sha256_of_text
from ablate.record import speed_sessions
from ablate.runner.devices import Device
from ablate.runner.listener import Report
from ablate.runner.other_ranks import joined_ranks
from ablate.runner.provenance import hardware_of, now, versions
from ablate.runner.task import Task
from ablate.store import Store
from ablate.training.ranks import Ranks

_SPEEDS = ("train_target_tokens_per_second", "decode_sentences_per_second")
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

    The first round saves what `measuring.probe` returns; ``session``; facts about the corpus:
    ``n_src`` and ``n_tgt``, the sizes of the vocabularies, ``batches_per_epoch``, and
    ``target_tokens_per_batch``, a mean; and the task's fallbacks. Each further round appends its
    speeds to the lists in ``rounds`` and updates the medians. The rounds of earlier sessions are in
    ``earlier``, since the row may share these sessions with other rows.
    """
    spec = RunSpec.model_validate(task.spec)
    prepared = prepare(spec, task.corpus_fingerprint, task.teacher_sha256)
    batches = Batches(prepared.train, spec.training.batch_tokens, PAD).of_epoch(0, 0)
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


def _follow_probe(task: Task, ranks: Ranks) -> None:
    """Execute a probe's part for a rank other than the first."""
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
