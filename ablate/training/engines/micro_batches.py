"""A batch in pieces, their gradients, and the sum of these: the same whoever finds which of them.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.training.gradient import StepInputs, add_gradient
from ablate.training.step import StepConfig

MOST = 8
_FEWEST_TOKENS = 1500  # of a piece; with fewer, one core alone would do the batch faster whole

Ids = NDArray[np.int64]
Gradient = list[Tensor | None]
"""Of each weight that is trained, in the order of the model; None where nothing reached it."""


@dataclass(frozen=True)
class MicroBatch:
    """Some pairs of a batch, as one process can send them to another.

    Attributes:
        src: source ids, (B, S).
        tgt_in: what the decoder reads, (B, T).
        tgt_out: what it shall write, (B, T).
        normalizer: what the summed losses are divided by before the gradient is taken.
        seed: of all that is drawn on the way.
    """

    src: Ids
    tgt_in: Ids
    tgt_out: Ids
    normalizer: int
    seed: int

    def inputs(self) -> StepInputs:
        """Return what a pass forward and backward is about."""
        src, tgt_in, tgt_out = map(torch.from_numpy, (self.src, self.tgt_in, self.tgt_out))
        n_tokens = int((tgt_out != PAD).sum())
        rows = torch.arange(len(src))
        return StepInputs.of(Batch(src, tgt_in, tgt_out, n_tokens, rows), self.normalizer)


def n_micro_batches(batch: Batch) -> int:
    """Return how many pieces a batch is done in: a power of two, that depends on its shape alone.

    For whoever has one core must find the numbers that whoever has four finds.
    """
    return _power_of_two(min(batch.src.size(0), batch.tgt_out.numel() // _FEWEST_TOKENS))


def largest_n_micro_batches(batch_tokens: int) -> int:
    """Return the most micro-batches that batches of at most ``batch_tokens`` are split into."""
    return _power_of_two(batch_tokens // _FEWEST_TOKENS)


def _power_of_two(n_most: int) -> int:
    """Return the largest power of two up to ``n_most`` and `MOST`, 1 at least."""
    n = 1
    while 2 * n <= min(MOST, n_most):
        n *= 2
    return n


def split_batch(batch: Batch, normalizer: int) -> list[MicroBatch]:
    """Return the pieces of a batch, of as many rows each as can be; draws a seed for each."""
    n, ids = n_micro_batches(batch), (batch.src, batch.tgt_in, batch.tgt_out)
    seeds = torch.randint(2**62, (n,)).tolist()
    sides = ([x.numpy() for x in side.tensor_split(n)] for side in ids)
    return [
        MicroBatch(src, tgt_in, tgt_out, normalizer, seed)
        for src, tgt_in, tgt_out, seed in zip(*sides, seeds, strict=True)
    ]


@dataclass(frozen=True)
class MicroBatchResult:
    """What came of one piece, or of several.

    Attributes:
        losses: as `add_gradient` returns them, summed, (2,).
        gradient: likewise summed.
    """

    losses: Tensor
    gradient: Gradient

    def plus(self, other: MicroBatchResult) -> MicroBatchResult:
        """Return the sum; the tensors of this one hold it."""
        both = [
            (mine, its)
            for mine, its in zip(self.gradient, other.gradient, strict=True)
            if mine is not None and its is not None
        ]
        if both:
            torch._foreach_add_([mine for mine, _ in both], [its for _, its in both])
        gradient = [
            mine if mine is not None or its is None else its.clone()
            for mine, its in zip(self.gradient, other.gradient, strict=True)
        ]
        return MicroBatchResult(self.losses + other.losses, gradient)


def compute_gradients(
    model: Transformer, step_config: StepConfig, pieces: Sequence[MicroBatch]
) -> MicroBatchResult:
    """Return what comes of some pieces, a power of two; the model's own gradients must be None.

    Halves of them are added up, and halves of these, so that it makes no difference to the last
    digit of the sum whether somebody else has done one of the halves.
    """
    if len(pieces) > 1:
        middle = len(pieces) // 2
        first, second = pieces[:middle], pieces[middle:]
        return compute_gradients(model, step_config, first).plus(
            compute_gradients(model, step_config, second)
        )
    torch.default_generator.manual_seed(pieces[0].seed)
    losses = add_gradient(model, step_config, pieces[0].inputs())
    return MicroBatchResult(losses, take_gradients(model))


def take_gradients(model: nn.Module) -> Gradient:
    """Return the gradient of a model, and leave it without."""
    weights = trainable_parameters(model)
    gradient = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    return gradient


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that have gradients."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def sum_results(found: Sequence[MicroBatchResult]) -> MicroBatchResult:
    """Return the sum of what came of as many pieces each, as `compute_gradients` would have it."""
    if len(found) == 1:
        return found[0]
    middle = len(found) // 2
    return sum_results(found[:middle]).plus(sum_results(found[middle:]))
