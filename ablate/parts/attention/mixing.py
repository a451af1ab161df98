"""Attentions that do something to their heads beside projecting to them.

B batch, T queries, S keys, H n_heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.parts.attention.contract import Attention
from ablate.parts.dims import Dims, Dropout
from ablate.parts.scaling import Scaling
from ablate.registry import register


@register(
    "talking_heads",
    formula="w_g = sum_h softmax(sum_f s_f L_fh)_h W_hg in place of w_g = softmax(s_g)",
    source="Shazeer et al. 2020, arXiv:2003.02436, sec. 4",
)
class TalkingHeads(Attention):
    """As `full`, with two trained matrices that mix the heads, before the softmax and after it.

    The first mixes scores, position biases included, before anything is masked; the second mixes
    weights, which no longer add up to 1. Both start as the identity, so that a model begins as
    `full`; the authors' code starts them like any other linear layer.

    Args:
        dims: widths and number of heads.
        scaling: what becomes of queries, keys and their dot products.
        dropout: of the mixed weights and of whole heads.
        bias: whether the four projections have one.
    """

    def __init__(
        self, dims: Dims, scaling: Scaling, dropout: Dropout, *, bias: bool = True
    ) -> None:
        super().__init__(dims, scaling, dropout)
        self.project_whole_width(dims, bias=bias)
        self.score_mix = nn.Parameter(torch.eye(dims.n_heads))  # from row to column
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
class HeadScale(Attention):
    """As `full`, with a trained factor for the output of every head.

    Args:
        dims: widths and number of heads.
        scaling: what becomes of queries, keys and their dot products.
        dropout: of the attention weights and of whole heads.
        bias: whether the four projections have one.
    """

    def __init__(
        self, dims: Dims, scaling: Scaling, dropout: Dropout, *, bias: bool = True
    ) -> None:
        super().__init__(dims, scaling, dropout)
        self.project_whole_width(dims, bias=bias)
        self.scale_heads()
