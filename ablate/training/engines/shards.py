"""The shards of a batch, their gradients, and the sum of these in a fixed order.

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
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig

MAX_SHARDS = 8
_FEWEST_TOKENS = 1500  # of a shard; with fewer, one core is faster with the whole batch

Ids = NDArray[np.int64]
Gradient = list[Tensor | None]
"""The gradient of each trained weight, in the order of the model; None if a weight has none."""


@dataclass(frozen=True)
class Shard:
    """Some pairs of a batch, in a form that can be sent to another process."""

    src: Ids  # (B, S)
    tgt_in: Ids  # decoder input, shifted right, (B, T)
    tgt_out: Ids  # labels, (B, T)
    normalizer: int  # what the summed losses are divided by before the gradient is taken
    seed: int  # of the random numbers of its forward pass
    is_training: bool  # whether the model is in training mode

    def inputs(self) -> StepInputs:
        """Return the inputs of a pass forward and backward."""
        src, tgt_in, tgt_out = map(torch.from_numpy, (self.src, self.tgt_in, self.tgt_out))
        n_tokens = int((tgt_out != PAD).sum())
        rows = torch.arange(len(src))
        return StepInputs.of(Batch(src, tgt_in, tgt_out, n_tokens, rows), self.normalizer)


def n_shards(batch: Batch) -> int:
    """Return how many shards a batch is split into: a power of two.

    It depends only on the batch's shape, so that results do not depend on the number of cores.
    """
    return largest_power_of_two(min(batch.src.size(0), batch.tgt_out.numel() // _FEWEST_TOKENS))


def max_n_shards(batch_tokens: int) -> int:
    """Return the most shards that batches of at most ``batch_tokens`` are split into."""
    return largest_power_of_two(batch_tokens // _FEWEST_TOKENS)


def largest_power_of_two(limit: int) -> int:
    """Return the largest power of two up to ``limit`` and `MAX_SHARDS`, at least 1."""
    return 2 ** (max(1, min(MAX_SHARDS, limit)).bit_length() - 1)


def shard_batch(batch: Batch, normalizer: int, *, is_training: bool) -> list[Shard]:
    """Split a batch into shards of about equally many rows, and draw a seed for each."""
    n, ids = n_shards(batch), (batch.src, batch.tgt_in, batch.tgt_out)
    seeds = torch.randint(2**62, (n,)).tolist()
    sides = ([x.numpy() for x in side.tensor_split(n)] for side in ids)
    return [
        Shard(src, tgt_in, tgt_out, normalizer, seed, is_training)
        for src, tgt_in, tgt_out, seed in zip(*sides, seeds, strict=True)
    ]


@dataclass(frozen=True)
class ShardResult:
    """The sums over one or several shards."""

    losses: Tensor  # as `forward_backward` returns them, (2,)
    gradient: Gradient

    def add_(self, other: ShardResult) -> ShardResult:
        """Add ``other`` in place and return the sum."""
        pairs = list(zip(self.gradient, other.gradient, strict=True))
        both = [(x, y) for x, y in pairs if x is not None and y is not None]
        if both:
            torch._foreach_add_([x for x, _ in both], [y for _, y in both])
        gradient = [x if x is not None or y is None else y.clone() for x, y in pairs]
        return ShardResult(self.losses + other.losses, gradient)


def compute_gradients(
    model: Transformer, step_config: StepConfig, shards: Sequence[Shard]
) -> ShardResult:
    """Return the sum of the gradients of a power of two of shards; the model must have none.

    The sums of the two halves are added, and so on recursively, so that the sum is the same bit for
    bit if another process has computed one of the halves.
    """
    if len(shards) > 1:
        middle = len(shards) // 2
        first = compute_gradients(model, step_config, shards[:middle])
        return first.add_(compute_gradients(model, step_config, shards[middle:]))
    (shard,) = shards
    if model.training != shard.is_training:  # a worker follows the mode of its parent
        model.train(shard.is_training)
    torch.default_generator.manual_seed(shard.seed)
    losses = forward_backward(model, step_config, shard.inputs())
    return ShardResult(losses, pop_gradients(model))


def pop_gradients(model: nn.Module) -> Gradient:
    """Return the gradient of a model, and set it to None."""
    weights = trainable_parameters(model)
    gradient = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    return gradient


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that require gradients."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def sum_results(results: Sequence[ShardResult]) -> ShardResult:
    """Add results of equally many shards, in the order of `compute_gradients`."""
    if len(results) == 1:
        return results[0]
    middle = len(results) // 2
    return sum_results(results[:middle]).add_(sum_results(results[middle:]))
