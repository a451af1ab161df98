"""The likelihood of reference translations, whatever objective a model was trained with."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer


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
    with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(batch.src, batch.tgt_in)
    targets = batch.tgt_out.flatten()
    losses = F.cross_entropy(
        logits.flatten(0, 1).float(), targets, ignore_index=PAD, reduction="none"
    )
    return losses.double().sum()
