"""Attentions that mix or scale their heads.

B batch, T queries, S keys, H n_heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.parts.attention.projections import MultiHeadAttention
from ablate.parts.dims import Dims
from ablate.registry import register


@register(
    "talking_heads",
    formula="w_g = sum_h softmax(sum_f s_f L_fh)_h W_hg in place of w_g = softmax(s_g)",
    source="Shazeer et al. 2020, arXiv:2003.02436, sec. 4",
)
class TalkingHeads(MultiHeadAttention):
    """As `full`, with two trained matrices that mix the heads, before the softmax and after it.

    The first mixes scores, position biases included, before masking; the second mixes weights,
    which then no longer sum to 1. Both start as the identity, so that a model starts as `full`; the
    authors' code initialises them like any other linear layer.
    """

    has_negative_weights = True

    score_mix: nn.Parameter  # (H, H), from row to column
    weight_mix: nn.Parameter  # (H, H)

    def add_parameters(self, dims: Dims, *, bias: bool) -> None:
        self.score_mix = nn.Parameter(torch.eye(dims.n_heads))
        self.weight_mix = nn.Parameter(torch.eye(dims.n_heads))

    def mix_scores(self, scores: Tensor) -> Tensor:
        return torch.einsum("bfts,fh->bhts", scores, self.score_mix)

    def mix_weights(self, weights: Tensor) -> Tensor:
        return torch.einsum("bhts,hg->bgts", weights, self.weight_mix)


@register(
    "head_scale",
    formula="out = concat(gamma_1 head_1 ... gamma_H head_H) Wo, gamma trained, at first 1",
    source="Shleifer et al. 2021, arXiv:2110.09456, sec. 2 (HeadScale)",
)
class HeadScale(MultiHeadAttention):
    """As `full`, with a trained factor for the output of every head."""

    def add_parameters(self, dims: Dims, *, bias: bool) -> None:
        self.add_head_scale()
