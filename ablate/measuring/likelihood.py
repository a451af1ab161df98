"""The likelihood of reference translations, whatever objective a model was trained with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.gradient import StepInputs, forward_hidden


@torch.inference_mode()
def nll(model: Transformer, batches: Iterable[Batch], precision: str) -> tuple[float, int]:
    """Return the negative log-likelihood per target token, and the number of tokens.

    In nats, EOS counted, padding not, without label smoothing; perplexity is its exponential. The
    model's mode is left as it was.

    Args:
        model: on the device of the batches.
        batches: of the split.
        precision: ``fp32``, or ``bf16`` for autocast; the softmax is in fp32 either way.

    Raises:
        ValueError: if there are no batches.
    """
    was_training = model.training
    model.eval()
    try:
        counted = [(_loss(model, batch, precision), batch.n_tokens) for batch in batches]
    finally:
        model.train(was_training)
    if not counted:
        raise ValueError("there is nothing to measure the likelihood of")
    losses, n_tokens = zip(*counted, strict=True)
    return float(torch.stack(losses).sum()) / sum(n_tokens), sum(n_tokens)


def perplexity(nll: float) -> float:
    """Return exp(``nll``), of nats per token; infinite where a float cannot hold it."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def _loss(model: Transformer, batch: Batch, precision: str) -> Tensor:
    autocast = partial(
        torch.autocast, batch.src.device.type, torch.bfloat16, enabled=precision == "bf16"
    )
    load = StepInputs.of(batch, batch.n_tokens)
    with autocast():
        hidden, _ = forward_hidden(model, load.src, load.tgt_in)  # (B, T, D)
    n_rows = model.embedding.rows_at_once(hidden.device)
    pieces = hidden.flatten(0, 1)[load.places].split(n_rows)
    targets = load.tgt_out.flatten()[load.places].split(n_rows)
    total = hidden.new_zeros((), dtype=torch.float64)
    for piece, wanted in zip(pieces, targets, strict=True):
        with autocast():
            logits = model.embedding.logits(piece)
        losses = F.cross_entropy(logits.float(), wanted, reduction="none")
        total += losses.double().sum()
    return total
