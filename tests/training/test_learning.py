"""Every registered part learns: the loss falls within thirty steps on the synthetic corpus."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from ablate.config import RunSpec
from ablate.config.experiment import TrainingSpec
from ablate.data.batches import Batches
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import PAD
from ablate.model import assemble
from ablate.parts.schedule import Schedule
from ablate.registry import build, lookup, slots
from ablate.training.engines import Eager
from ablate.training.step import BatchStream, StepConfig, make_optimizer, set_lr
from tests.tiny import MODEL_SLOTS, PARTS, TINY, choices

pytestmark = pytest.mark.train

TRAINING_SLOTS = [slot for slot in slots() if slot in TrainingSpec.model_fields]
TRAINING_PARTS = [(slot, name) for slot in TRAINING_SLOTS for name in slots()[slot]]
N_STEPS = 30
QUICK = {"lr": 5e-3, "warmup": 5, "factor": 0.1}
"""What a schedule needs to get anywhere in so few steps, as far as it has such options."""

NEEDS = {"minimum_risk": {"likelihood": 0.9, "n_samples": 2, "max_extra": 1}}
"""What a part needs that begins, by its nature, with a trained model."""


def run_spec(slot: str, name: str, **options: Any) -> RunSpec:
    model, training = dict(TINY), {"schedule": {"name": "constant", "lr": 5e-3}}
    choice = {slot: {"name": name, **options}}
    if slot in MODEL_SLOTS:
        model |= choices(slot, name) | choice
        model["n_layers"] = 1 if model["n_layers"] < 3 else 3
    else:
        training |= choice
    return RunSpec.model_validate(
        {
            "corpus": {"name": "synthetic", "size": 400},
            "tokenizer": "word",
            "model": model | {"dims": {"d_model": 32, "n_heads": 4, "max_len": 32}},
            "training": training | {"batch_tokens": 256, "steps": N_STEPS},
        }
    )


@functools.cache
def corpus() -> Prepared:
    return prepare(run_spec("position", "none"))


def learns(spec: RunSpec, rate: float = 1.0, enough: float = 0.3) -> bool:
    """Return whether the loss falls by so much, each time the mean of three steps.

    Args:
        spec: the run.
        rate: a factor of the learning rate.
        enough: by how much.
    """
    torch.manual_seed(0)
    prepared, training, dims = corpus(), spec.training, spec.model.dims
    model = assemble(spec.model, prepared.tokenizers.vocabulary, PAD).train()
    optimizer = make_optimizer(spec, model)
    schedule = build(Schedule, training.schedule, dims, N_STEPS)
    stream = BatchStream(Batches(prepared.train, training.batch_tokens, PAD), seed=0)
    engine = Eager(model, StepConfig.of(training, "fp32"), optimizer)
    actual = []
    for step in range(1, N_STEPS + 1):
        set_lr(optimizer, rate * schedule.rate(step))
        batches = list(stream.take(1))
        if step == 1:
            model.calibrate(batches[0].src, batches[0].tgt_in)
        actual.append(float(engine.step(batches).loss))
        if step >= 6 and sum(actual[:3]) - sum(actual[-3:]) > 3 * enough:
            return True
    return False


@pytest.mark.parametrize(("slot", "name"), PARTS)
def test_every_part_of_the_model_learns(slot: str, name: str) -> None:
    assert learns(run_spec(slot, name))


@pytest.mark.parametrize(("slot", "name"), TRAINING_PARTS)
def test_every_part_of_training_learns(slot: str, name: str) -> None:
    """An optimizer may need another learning rate than Adam does.

    Generalised cross-entropy is bounded, so that it falls by less.
    """
    known = lookup(slot, name).options.model_fields
    options = {k: v for k, v in QUICK.items() if k in known} if slot == "schedule" else {}
    spec = run_spec(slot, name, **(options | NEEDS.get(name, {})))
    rates = (1.0, 0.1, 10.0, 100.0) if slot == "optimizer" else (1.0,)
    enough = 0.05 if name == "generalised_cross_entropy" else 0.3
    assert any(learns(spec, rate, enough) for rate in rates)
