"""Attentions that replace the softmax: sink, sigmoid, sparsemax and entmax.

B batch, T queries, S keys, H n_heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.parts.attention.projections import MultiHeadAttention
from ablate.parts.dims import Dims, at_least_float32
from ablate.registry import register

_MIN_RADICAND = 1e-12  # below which the gradient of the square root overflows


@register(
    "sink",
    formula="w_j = exp(s_j) / (exp(b_h) + sum_i exp(s_i)), b trained for each head, 0 at first",
    source="OpenAI 2025, arXiv:2508.10925, sec. 2.2 (gpt-oss); with b = 0 Miller 2023, 'Attention "
    "Is Off By One'",
)
class Sink(MultiHeadAttention):
    """A softmax with one more score, of no key, so that a head may attend to nothing.

    The weights of a query sum to less than 1. A query without any allowed key gets zeros.
    """

    sink: nn.Parameter  # (H,)

    def add_parameters(self, dims: Dims, *, bias: bool) -> None:
        self.sink = nn.Parameter(torch.zeros(dims.n_heads))

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        scores = at_least_float32(scores)
        sink = self.sink[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]


@register(
    "sigmoid",
    formula="w_j = 1 / (1 + exp(-(s_j - ln n))), n the number of allowed keys",
    source="Ramapuram et al. 2024, arXiv:2409.04431, sec. 3",
)
class SigmoidAttention(MultiHeadAttention):
    """Each weight depends on its own score alone; a query's weights need not sum to 1.

    The paper subtracts the logarithm of the sequence length from all scores; this part subtracts
    that of the number of keys that the query may attend to, so that padding and later tokens have
    no effect.
    """

    counts_keys = True

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        n = mask.sum(dim=-1, keepdim=True).clamp(min=1)
        scores = at_least_float32(scores)
        return (scores - n.to(scores.dtype).log()).sigmoid().masked_fill(~mask, 0.0)


@register(
    "sparsemax",
    formula="w_j = max(s_j - tau, 0) with tau such that sum_j w_j = 1",
    source="Martins & Astudillo 2016, arXiv:1602.02068, alg. 1",
)
class Sparsemax(MultiHeadAttention):
    """The nearest distribution to the scores; most weights are 0."""

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        z = _minus_max(scores, 1.0)
        ordered, n = _sort_descending(z)
        excess = ordered.cumsum(dim=-1) - 1
        size = _support_size(n * ordered > excess)
        tau = excess.gather(-1, size - 1) / size
        return (z - tau).clamp(min=0)


@register(
    "entmax15",
    formula="w_j = max(s_j / 2 - tau, 0)^2 with tau such that sum_j w_j = 1",
    source="Peters et al. 2019, arXiv:1905.05702, sec. 3 and alg. 2 (1.5-entmax); in Transformers "
    "Correia et al. 2019, arXiv:1909.00015",
)
class Entmax15(MultiHeadAttention):
    """Between softmax and `sparsemax`: smooth where weights are large, and 0 where small."""

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        z = _minus_max(scores, 0.5)
        ordered, n = _sort_descending(z)
        mean = ordered.cumsum(dim=-1) / n
        variance = ordered.square().cumsum(dim=-1) / n - mean.square()
        taus = mean - (1 / n - variance).clamp(min=_MIN_RADICAND).sqrt()
        size = _support_size((taus <= ordered) & (n * variance <= 1))
        tau = taus.gather(-1, size - 1)
        return (z - tau).clamp(min=0).square()


def _minus_max(scores: Tensor, factor: float) -> Tensor:
    """Return ``factor`` (score - largest score), at least -2, for ``scores`` (..., S).

    Both functions give weight 0 to what is -1 or less.
    """
    scores = at_least_float32(scores)
    difference = scores - scores.amax(dim=-1, keepdim=True).detach()
    return (factor * difference).clamp(min=-2.0)


def _support_size(is_in_support: Tensor) -> Tensor:
    """Return how many are in the support, (..., 1): one at least, though all scores are NaN."""
    return is_in_support.sum(dim=-1, keepdim=True).clamp(min=1)


def _sort_descending(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``z`` (..., S) in descending order, and the numbers 1, 2, ..., S."""
    ordered = z.sort(dim=-1, descending=True).values
    return ordered, torch.arange(1, z.size(-1) + 1, device=z.device, dtype=z.dtype)
