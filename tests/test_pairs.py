"""Every two parts of different slots run one step together, or are refused with a reason."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import nn

from ablate.config import RunSpec
from ablate.config.experiment import ModelSpec, TrainingSpec
from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD, Tokenizer
from ablate.decoding import Search
from ablate.model import assemble
from ablate.parts.schedule import Schedule
from ablate.registry import RefusedError, build, slots
from ablate.training.engines import Eager
from ablate.training.step import StepConfig, make_optimizer, set_lr
from tests.tiny import TINY, companion, ids

SLOTS = [s for s in slots() if s not in ("corpus", "metric")]  # it meets the others as ids alone
MEETS = {"tokenizer": "embedding", "schedule": "optimizer"}  # the others get but a number of them
PAIRS = [
    pair for pair in combinations(SLOTS, 2) if all(MEETS.get(slot, slot) in pair for slot in pair)
]
_N_LAYERS = {"sharing": 3, "residual": 2}  # in cycles 3 layers share; some residuals reach further


def run_spec(choices: dict[str, str]) -> RunSpec:
    """Return a tiny run with these parts, and the companions that they require."""
    model: dict[str, Any] = TINY | {
        "dims": {"d_model": 16, "n_heads": 4, "max_len": 16},
        "n_layers": _N_LAYERS.get(next((s for s in _N_LAYERS if s in choices), ""), 1),
        "embedding": {
            "name": "tied",
            "scale": "none",
        },  # small, so that squares without a norm stay
    }
    training: dict[str, Any] = {}
    whole: dict[str, Any] = {"tokenizer": {"name": "word", "vocab_size": 50}}
    for slot, name in choices.items():
        if slot in ModelSpec.model_fields:
            needed = {s: n for s, n in companion(slot, name).items() if s not in choices}
            model |= needed | {slot: name}
        elif slot in TrainingSpec.model_fields:
            training[slot] = name
        else:
            whole[slot] = {"name": name}
    return RunSpec.model_validate(whole | {"model": model, "training": training})


def run(spec: RunSpec, *, translates: bool) -> None:
    """Assemble, make one step, perhaps translate a sentence; every number must be finite."""
    torch.manual_seed(0)
    vocabulary = build(Tokenizer, spec.tokenizer, at="tokenizer").nominal_vocabulary()
    model = assemble(spec.model, vocabulary, PAD).train()
    src, tgt = ids(3, 6), ids(3, 6, seed=2)
    src[1, 4:] = tgt[1, 3:] = PAD
    batch = Batch(src, tgt[:, :-1], tgt[:, 1:].contiguous(), 12, torch.arange(3))
    optimizer = make_optimizer(spec, model)
    set_lr(optimizer, build(Schedule, spec.training.schedule, spec.model.dims, 10).rate(1))
    model.calibrate(batch.src, batch.tgt_in)
    result = Eager(model, StepConfig.of(spec.training, "fp32"), optimizer).step([batch])
    assert bool(torch.stack((result.loss, result.aux_loss, result.gradient_norm)).isfinite().all())
    assert bool(nn.utils.get_total_norm(list(model.parameters())).isfinite())
    if translates:
        with torch.inference_mode():
            build(Search, spec.decoding).search(model.eval(), src[:1], torch.tensor([3]))


@pytest.mark.full
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda slot: slot)
def test_any_two_parts_run_together_or_are_refused(one: str, other: str) -> None:
    refusals = []
    for names in product(slots()[one], slots()[other]):
        try:
            spec = run_spec(dict(zip((one, other), names, strict=True)))
            run(spec, translates="decoding" in (one, other))
        except RefusedError as refusal:
            refusals.append((names, refusal.reason))
    assert all(len(reason.split()) > 5 for _, reason in refusals), refusals
    assert len(refusals) < len(slots()[one]) * len(slots()[other]) / 2, refusals
