"""Attentions that differ in how a sequence is projected to heads, or that mix or scale heads.

B batch, T queries, S keys, D d_model, H n_heads, G heads of keys and values, K d_k, V d_v.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from ablate.parts.attention.contract import Attention, split_heads
from ablate.parts.dims import Dims, Dropout
from ablate.parts.scaling import Scaling
from ablate.registry import register


class MultiHeadAttention(Attention):
    """The base of attentions in which every head projects the whole width.

    Args:
        bias: whether the projections have one.
    """

    has_one_kv_head: ClassVar[bool] = False

    def __init__(
        self, dims: Dims, scaling: Scaling, dropout: Dropout, *, bias: bool = True
    ) -> None:
        super().__init__(dims, scaling, dropout)
        if self.has_one_kv_head:
            self.n_kv_heads = 1
        self.make_projections(dims, bias=bias)
        self.add_parameters(dims, bias=bias)

    def add_parameters(self, dims: Dims, *, bias: bool) -> None:
        """Make the parameters that the part has beside its four projections."""


@register(
    "full",
    formula="head_h = softmax(s(x Wq_h, y Wk_h)) y Wv_h; out = concat(head_1 ... head_H) Wo",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2",
)
class Full(MultiHeadAttention):
    """Every head projects the whole width; d_k and d_v are free (model.dims)."""


@register(
    "per_head_shared",
    formula="as full with Wq = diag(Wq', ..., Wq'), Wk and Wv alike",
    source="A. Persson 2020, 'Transformers from scratch' (tutorial code); not in the literature",
)
class PerHeadShared(Attention):
    """Each head sees only its own slice of the width, through projections that all heads share.

    Equal to `full` with the block-diagonal weights diag(W, ..., W), and so with 1 / n_heads^2
    of the weights in queries, keys and values.

    Args:
        bias: whether the four projections have one.

    Raises:
        ValueError: if d_model is not a multiple of n_heads.
    """

    def __init__(
        self, dims: Dims, scaling: Scaling, dropout: Dropout, *, bias: bool = True
    ) -> None:
        super().__init__(dims, scaling, dropout)
        if dims.d_model % dims.n_heads:
            raise ValueError(
                "per_head_shared splits the input into n_heads equal slices, so d_model "
                f"({dims.d_model}) must be a multiple of n_heads ({dims.n_heads})"
            )
        d_slice = dims.d_model // dims.n_heads
        self.q = nn.Linear(d_slice, dims.d_k, bias=bias)
        self.k = nn.Linear(d_slice, dims.d_k, bias=bias)
        self.v = nn.Linear(d_slice, dims.d_v, bias=bias)
        self.out = nn.Linear(dims.n_heads * dims.d_v, dims.d_model, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        return self.scaling.query(self.q(split_heads(x, self.n_heads)))

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        slices = split_heads(source, self.n_heads)  # (B, H, S, D / H)
        return self.scaling.key(self.k(slices)), self.v(slices)


@register(
    "multi_query",
    formula="head_h = softmax(s(x Wq_h, y Wk)) y Wv; out = concat(head_1 ... head_H) Wo",
    source="Shazeer 2019, arXiv:1911.02150, sec. 3",
)
class MultiQuery(MultiHeadAttention):
    """All heads share one head of keys and values, so that a cache holds 1 / n_heads as much."""

    has_one_kv_head = True


@register(
    "grouped_query",
    formula="head_h = softmax(s(x Wq_h, y Wk_g)) y Wv_g with g = floor(h n_groups / H), h from 0",
    source="Ainslie et al. 2023, arXiv:2305.13245, sec. 2.2",
)
class GroupedQuery(Attention):
    """Neighbouring heads share keys and values: between `multi_query` and `full`.

    With one group it is `multi_query`, and with as many groups as heads `full`.

    Args:
        n_groups: heads of keys and values; the paper has 8 for 64 heads of queries. The default
            divides every even number of heads.
        bias: whether the four projections have one.

    Raises:
        ValueError: if n_groups does not divide the number of heads.
    """

    def __init__(
        self,
        dims: Dims,
        scaling: Scaling,
        dropout: Dropout,
        *,
        n_groups: PositiveInt = 2,
        bias: bool = True,
    ) -> None:
        super().__init__(dims, scaling, dropout)
        if dims.n_heads % n_groups:
            raise ValueError(
                f"grouped_query cannot split n_heads ({dims.n_heads}) evenly among n_groups "
                f"({n_groups}); choose a number of groups that divides the number of heads"
            )
        self.n_kv_heads = n_groups
        self.make_projections(dims, bias=bias)


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
