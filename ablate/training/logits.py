"""Logits a few rows at a time: those of all tokens would be the largest tensor of a step by far.

N tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ablate.model import Transformer


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context of a forward pass in ``precision``, ``fp32`` or ``bf16``."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def logits_of_chunks(
    model: Transformer, hidden: Tensor, targets: Tensor, precision: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Split ``hidden`` (N, D) and ``targets`` (N,); yield the logits (n, V) and targets (n,)."""
    n_rows = model.embedding.rows_at_once(hidden.device)
    for chunk, chunk_targets in zip(hidden.split(n_rows), targets.split(n_rows), strict=True):
        with autocast(hidden.device, precision):
            logits = model.embedding.logits(chunk)
        yield logits, chunk_targets
