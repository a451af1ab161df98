"""The likelihood of reference translations, whatever objective a model was trained with.

N pairs of a split, B batch, T target tokens, D d_model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.candidates import autocast, logits_of_chunks
from ablate.training.gradient import StepInputs, forward_hidden


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a split."""

    nll: float  # negative log-likelihood per target token, in nats, EOS counted, padding not
    of_sentences: NDArray[np.float64]  # of every pair of the split, in nats, (N,)


@torch.inference_mode()
def likelihood(model: Transformer, batches: Iterable[Batch], precision: str) -> Likelihood:
    """Measure the likelihood of batches; the model's mode stays the same.

    The softmax is in fp32 in either precision. ValueError if there are no batches.
    """
    was_training = model.training
    model.eval()
    try:
        results = [_losses(model, batch, precision) for batch in batches]
    finally:
        model.train(was_training)
    if not results:
        raise ValueError("there is nothing to measure the likelihood of")
    totals, losses, rows, index = zip(*results, strict=True)
    starts = np.cumsum([0, *map(len, index)])[:-1].tolist()
    all_rows = torch.cat([row + start for row, start in zip(rows, starts, strict=True)])
    sentences = torch.cat(index)[all_rows.cpu()].numpy()
    token_losses = torch.cat(losses).double().cpu().numpy()
    of_sentences = np.bincount(sentences, weights=token_losses).astype(np.float64)
    return Likelihood(float(torch.stack(totals).sum()) / len(token_losses), of_sentences)


def perplexity(nll: float) -> float:
    """Return exp(``nll``), with nats per token; infinity where a float overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def _losses(
    model: Transformer, batch: Batch, precision: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the losses of a batch, without waiting for its device.

    Returns:
        The sum of the losses, (); the loss of each token and its row in the batch, (n_tokens,);
        and each row's index in the split, (B,), on the CPU.
    """
    inputs = StepInputs.of(batch, batch.n_tokens)
    assert inputs.token_index is not None, "the inputs leave padding out"
    with autocast(batch.src.device, precision):
        hidden, _ = forward_hidden(model, inputs.src, inputs.tgt_in)  # (B, T, D)
    hidden = hidden.flatten(0, 1)[inputs.token_index]
    targets = inputs.tgt_out.flatten()[inputs.token_index]
    total = hidden.new_zeros((), dtype=torch.float64)
    losses = []
    for logits, labels in logits_of_chunks(model, hidden, targets, precision):
        losses.append(F.cross_entropy(logits.float(), labels, reduction="none").double())
        total += losses[-1].sum()
    return total, torch.cat(losses), inputs.token_index // batch.tgt_out.size(1), batch.index
