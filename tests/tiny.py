"""The small Transformer of the contracts, under the name that tests have for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from ablate.contracts.tiny import MODEL_SLOTS as MODEL_SLOTS
from ablate.contracts.tiny import PAD as PAD
from ablate.contracts.tiny import TINY as TINY
from ablate.contracts.tiny import VOCABULARY as VOCABULARY
from ablate.contracts.tiny import accepted as accepted
from ablate.contracts.tiny import alternatives as alternatives
from ablate.contracts.tiny import choices as choices
from ablate.contracts.tiny import companion as companion
from ablate.contracts.tiny import fitted as fitted
from ablate.contracts.tiny import ids as ids
from ablate.contracts.tiny import scrambled as scrambled
from ablate.contracts.tiny import spec as spec
from ablate.contracts.tiny import tiny as tiny
from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.parts.dims import Dropout
from ablate.parts.objective import Objective
from ablate.registry import slots


def some_batch() -> Batch:
    """Return four pairs of different lengths."""
    src, tgt = ids(4, 7), ids(4, 8, seed=2)
    src[1, 4:] = tgt[1, 3:] = tgt[2, 6:] = PAD
    tgt_out = tgt[:, 1:].contiguous()
    return Batch(src, tgt[:, :-1], tgt_out, int((tgt_out != PAD).sum()), torch.arange(4))


RATES = [name for name, field in Dropout.model_fields.items() if isinstance(field.default, float)]
OBJECTIVES = [
    name
    for name, entry in sorted(slots()["objective"].items())
    if not (entry.cls.batch_dependence or entry.cls.capture_blocker)
]
"""Objectives that every engine takes."""
PARTS = [(slot, name) for slot in MODEL_SLOTS for name in slots()[slot]]


def thin(slot: str, name: str) -> Transformer:
    """Assemble the tiny model with one part: one layer, or three if the part relates layers."""
    changes = choices(slot, name)
    return tiny(**changes | {"n_layers": 1 if changes["n_layers"] < 3 else 3})


def mixtures(parts: Sequence[tuple[str, str]]) -> list[tuple[tuple[str, str], ...]]:
    """Divide parts into groups with at most one of every slot, as few as there can be."""
    of_slot = {slot: [part for part in parts if part[0] == slot] for slot, _ in parts}
    return [tuple(filter(None, group)) for group in zip_longest(*of_slot.values())]


def mixed(parts: Iterable[tuple[str, str]]) -> Iterator[Transformer]:
    """Yield a model with all these parts, and with each that they refuse one of its own.

    No weight is zero, so that no part is hidden behind a gate.
    """
    together: dict[str, Any] = {}
    for slot, name in parts:
        changes = together | {s: v for s, v in choices(slot, name).items() if s != "n_layers"}
        if together.keys() & companion(slot, name) or accepted(**changes, n_layers=3) is None:
            yield scrambled(thin(slot, name))
        else:
            together = changes
    yield scrambled(
        tiny(**together, n_layers=3 if {"residual", "sharing"} & together.keys() else 1)
    )


def loss_of_sentences(objective: Objective, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss, (), of logits (B, T, V) and targets (B, T)."""
    context = objective.context(targets)
    rows = targets[..., None] if context is None else context
    return objective.loss_in_context(logits.flatten(0, 1), targets.flatten(), rows.flatten(0, 1))
