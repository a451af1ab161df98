"""Attentions that turn scores into weights by other functions than the softmax.

B batch, T queries, S keys, H n_heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.parts.attention.projections import WholeWidth
from ablate.parts.dims import Dims
from ablate.registry import register

_LEAST = 1e-12  # of what a root is taken of, so that its gradient is finite


@register(
    "sink",
    formula="w_j = exp(s_j) / (exp(b_h) + sum_i exp(s_i)), b trained for each head, 0 at first",
    source="OpenAI 2025, arXiv:2508.10925, sec. 2.2 (gpt-oss); with b = 0 Miller 2023, 'Attention "
    "Is Off By One'",
)
class Sink(WholeWidth):
    """A softmax with one more score, of no key, so that a head may attend to nothing.

    The weights of a query sum to less than 1. A query without any allowed key gets zeros.
    """

    sink: nn.Parameter  # (H,)

    def add_parameters(self, dims: Dims) -> None:
        self.sink = nn.Parameter(torch.zeros(dims.n_heads))

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        wide = _at_least_float32(scores)
        sink = self.sink[:, None, None].to(wide.dtype).expand(*wide.shape[:-1], 1)
        return torch.cat((wide, sink), dim=-1).softmax(dim=-1)[..., :-1]


@register(
    "sigmoid",
    formula="w_j = 1 / (1 + exp(-(s_j - ln n))), n the number of allowed keys",
    source="Ramapuram et al. 2024, arXiv:2409.04431, sec. 3",
)
class SigmoidAttention(WholeWidth):
    """Every weight by itself; they need not sum to 1.

    The paper subtracts the logarithm of the length of the sequence from all scores; here it is that
    of the number of keys that the query may attend to, so that padding and later tokens have no
    effect.
    """

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        n = mask.sum(dim=-1, keepdim=True).clamp(min=1)
        wide = _at_least_float32(scores)
        return (wide - n.to(wide.dtype).log()).sigmoid().masked_fill(~mask, 0.0)


@register(
    "sparsemax",
    formula="w_j = max(s_j - tau, 0) with tau such that sum_j w_j = 1",
    source="Martins & Astudillo 2016, arXiv:1602.02068, alg. 1",
)
class Sparsemax(WholeWidth):
    """The nearest distribution to the scores; most weights are 0."""

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        z = _below_best(scores, 1.0)
        ordered, n = _ordered(z)
        excess = ordered.cumsum(dim=-1) - 1
        size = (n * ordered > excess).sum(dim=-1, keepdim=True)  # of the support
        tau = excess.gather(-1, size - 1) / size
        return (z - tau).clamp(min=0)


@register(
    "entmax15",
    formula="w_j = max(s_j / 2 - tau, 0)^2 with tau such that sum_j w_j = 1",
    source="Peters et al. 2019, arXiv:1905.05702, sec. 3 and alg. 2 (1.5-entmax); in Transformers "
    "Correia et al. 2019, arXiv:1909.00015",
)
class Entmax15(WholeWidth):
    """Between softmax and `sparsemax`: smooth where weights are large, and 0 where small."""

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        z = _below_best(scores, 0.5)
        ordered, n = _ordered(z)
        mean = ordered.cumsum(dim=-1) / n
        variance = ordered.square().cumsum(dim=-1) / n - mean.square()
        taus = mean - (1 / n - variance).clamp(min=_LEAST).sqrt()
        size = ((taus <= ordered) & (n * variance <= 1)).sum(dim=-1, keepdim=True)
        tau = taus.gather(-1, size - 1)
        return (z - tau).clamp(min=0).square()


def _below_best(scores: Tensor, factor: float) -> Tensor:
    """Return ``factor`` times the scores (..., S) less the best one, at least -2.

    What is 1 or more below the best one is outside of the support of both functions.
    """
    wide = _at_least_float32(scores)
    below = wide - wide.amax(dim=-1, keepdim=True).detach()
    return (factor * below).clamp(min=-2.0)


def _ordered(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``z`` (..., S) in descending order, and the numbers 1, 2, ..., S."""
    ordered = z.sort(dim=-1, descending=True).values
    return ordered, torch.arange(1, z.size(-1) + 1, device=z.device, dtype=z.dtype)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
