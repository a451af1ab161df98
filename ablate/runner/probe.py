"""Speed and memory of a row: measured alone on its device, once per kind of machine."""

from __future__ import annotations

import hashlib
import json

import torch

from ablate import measuring
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.decoding import Search
from ablate.model import assemble
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Optimizer
from ablate.registry import build
from ablate.runner.devices import Device
from ablate.runner.provenance import hardware, versions
from ablate.runner.task import Task
from ablate.spec import RunSpec
from ablate.store import Store

_IRRELEVANT = {
    "steps", "epochs", "target_tokens", "schedule", "average", "evaluate_every", "patience",
    "diverged_above", "precision",
}  # fmt: skip
"""Of training: how long it goes on and what happens between steps."""


def probe_key(spec: RunSpec, device: Device, precision: str) -> str:
    """Return 16 hex digits for all that the speed and memory of a run depend on."""
    data = spec.model_dump(mode="json", exclude={"seed": True, "training": _IRRELEVANT})
    where = {"hardware": hardware(str(device)), "versions": versions(), "precision": precision}
    text = json.dumps([data, where], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def probe_one(task: Task, store: Store) -> None:
    """Measure a row, in a fresh process, and keep the result."""
