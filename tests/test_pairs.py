"""Every two parts of different slots run one step together, or are refused with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
Parts = frozenset[tuple[str, str]]
"""Slot and name of each."""

NOT_FINITE = "numbers are not finite"
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
    """Assemble, make one step, perhaps translate a sentence.

    Raises:
        RefusedError: if a part refuses the others.
        FloatingPointError: if a number is not finite.
    """
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
    weights = nn.utils.get_total_norm(list(model.parameters()))
    numbers = torch.stack((result.loss, result.aux_loss, result.gradient_norm, weights))
    if not bool(numbers.isfinite().all()):
        raise FloatingPointError(NOT_FINITE)
    if translates:
        with torch.inference_mode():
            build(Search, spec.decoding).search(model.eval(), src[:1], torch.tensor([3]))


def outcome(parts: Parts) -> str:
    """Return why parts do not run together; nothing if they do."""
    choices = dict(parts)
    try:
        run(run_spec(choices), translates="decoding" in choices)
    except RefusedError as refusal:
        return refusal.reason
    except FloatingPointError:
        return NOT_FINITE
    except Exception as error:
        error.add_note(f"with {choices}")
        raise
    return ""


def one_of_each(todo: Mapping[Parts, None], failed: Iterable[Parts]) -> Parts:
    """Return parts of different slots that hold many pairs of ``todo``, and none of ``failed``."""
    parts = set(next(iter(todo)))
    for slot in SLOTS:
        if slot in dict(parts):
            continue
        options = [
            (sum(frozenset((part, (slot, name))) in todo for part in parts), name)
            for name in slots()[slot]
            if not any(each <= parts | {(slot, name)} for each in failed)
        ]
        n_pairs, name = max(options, default=(0, ""))
        if n_pairs:
            parts.add((slot, name))
    return frozenset(parts)


def smallest(parts: Parts) -> Parts:
    """Return some of the parts that do not run together, and would without any one of them."""
    for part in sorted(parts):
        if len(parts) > 2 and outcome(parts - {part}):
            parts -= {part}
    return parts


@pytest.mark.full
def test_any_two_parts_run_together_or_are_refused() -> None:
    """Many pairs at once: one run has a part of every slot.

    What does not run is narrowed down. Three parts of which any two run together may be refused, or
    too much for the numbers.
    """
    todo = dict.fromkeys(
        frozenset(zip(pair, names, strict=True))
        for pair in PAIRS
        for names in product(*(slots()[slot] for slot in pair))
    )
    n_pairs = Counter(slots_of(pair) for pair in todo)
    failed: dict[Parts, str] = {}
    while todo:
        parts = one_of_each(todo, failed)
        if outcome(parts):
            parts = smallest(parts)
            failed[parts] = outcome(parts)
            todo.pop(parts, None)
        else:
            for pair in combinations(parts, 2):
                todo.pop(frozenset(pair), None)
    refused = {pair: reason for pair, reason in failed.items() if len(pair) == 2}
    assert not [pair for pair, reason in refused.items() if reason == NOT_FINITE]
    assert all(len(reason.split()) > 5 for reason in refused.values()), refused
    for both, n_refused in Counter(map(slots_of, refused)).items():
        assert n_refused < n_pairs[both] / 2, both


def slots_of(parts: Parts) -> frozenset[str]:
    return frozenset(slot for slot, _ in parts)
