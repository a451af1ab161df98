"""Speed and memory of a row: measured alone on its device, once per kind of machine."""

from __future__ import annotations

import hashlib
import json

import torch

from ablate import measuring
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.runner.devices import Device
from ablate.runner.provenance import hardware, versions
from ablate.runner.task import Task
from ablate.spec import RunSpec
from ablate.spec.identity import outside
from ablate.store import Store

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
"""Of training: how long it goes on, and what happens between steps."""


def probe_key(spec: RunSpec, device: Device, precision: str, engine: str) -> str:
    """Return 16 hex digits for all that the speed and memory of a run depend on."""
    data = spec.model_dump(mode="json")
    training = {k: v for k, v in data["training"].items() if k not in _IRRELEVANT}
    machine = {k: v for k, v in hardware(str(device)).items() if k != "threads"}
    known = {
        "spec": {**data, "training": training, "seed": None},
        "precision": precision,
        "engine": engine,
        "hardware": machine,
        "versions": versions(),
    }
    plugins = outside(spec)
    if plugins:
        known["plugins"] = {path: plugin.identity for path, plugin in plugins.items()}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def probe_one(task: Task, store: Store) -> None:
    """Measure a row, in a fresh process, and keep the result.

    Beside what `measuring.probe` returns, it holds what only the corpus can tell: ``n_src`` and
    ``n_tgt``, the sizes of the vocabularies, ``batches_per_epoch``, and
    ``target_tokens_per_batch``, their mean.
    """
    spec = RunSpec.model_validate(task.spec)
    prepared = prepare(spec)
    n_batches = Batches(prepared.train, spec.training.batch_tokens, PAD).n_per_epoch
    measured = measuring.probe(
        spec, prepared, torch.device(task.device), task.precision, task.engine
    )
    of_corpus = {
        "n_src": prepared.codec.vocabulary.n_src,
        "n_tgt": prepared.codec.vocabulary.n_tgt,
        "batches_per_epoch": n_batches,
        "target_tokens_per_batch": int(prepared.train.tgt.lengths.sum()) / n_batches,
    }
    store.save_probe(task.key, {**measured, **of_corpus})
