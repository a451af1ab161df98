"""Attentions with gates, differences of maps, values of lower layers, and latent keys and values.

B batch, T queries, S keys, D d_model, H n_heads, G heads of keys and values, K d_k, V d_v.
"""

from __future__ import annotations

import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from ablate.parts.attention.contract import Attention, AttentionContext, split_heads
from ablate.parts.attention.projections import MultiHeadAttention
from ablate.parts.dims import Dims, Dropout, Fraction, at_least_float32
from ablate.parts.position import Position
from ablate.parts.roles import Roles
from ablate.parts.scaling import Scaling
from ablate.registry import register


@register(
    "gated",
    formula="out = concat(head_1 ... head_H) * sigmoid(x Wg) Wo, as full",
    source="Qiu et al. 2025, arXiv:2505.06708, sec. 2.2 (elementwise gate of the SDPA output, G1)",
)
class GatedAttention(MultiHeadAttention):
    """As `full`, with a gate of every element of the heads' outputs, made from the query's token.

    Args:
        bias: whether the four projections and the gate have one.
    """

    def add_parameters(self, dims: Dims, *, bias: bool) -> None:
        self.gate = nn.Linear(dims.d_model, dims.n_heads * dims.d_v, bias=bias)

    def transform_heads(self, y: Tensor, x: Tensor, context: AttentionContext) -> Tensor:
        return y * split_heads(self.gate(x), self.n_heads).sigmoid()


@register(
    "value_residual",
    formula="as full; in self-attention above the lowest layer v <- (1 - share) v + share v_1",
    source="Zhou et al. 2024, arXiv:2410.17897, sec. 3 (ResFormer, fixed weights)",
)
class ValueResidual(MultiHeadAttention):
    """Self-attention whose values are mixed with those of the lowest layer of the stack.

    Cross-attention, which the paper does not have, is `full`.

    Args:
        share: the weight of the lowest layer's values; a half in the paper.
        bias: whether the four projections have one.
    """

    def __init__(
        self,
        dims: Dims,
        scaling: Scaling,
        dropout: Dropout,
        *,
        share: Fraction = 0.5,
        bias: bool = True,
    ) -> None:
        super().__init__(dims, scaling, dropout, bias=bias)
        self.share = share

    def mix_values(self, v: Tensor, context: AttentionContext) -> Tensor:
        if not context.is_self_attention:
            return v
        if not context.first_values:
            context.first_values.append(v)
            return v
        return (1 - self.share) * v + self.share * context.first_values[0]


@register(
    "differential",
    formula="head = (1 - c) norm((softmax(q1 k1) - l softmax(q2 k2)) v), l = exp(a1 . b1) - "
    "exp(a2 . b2) + c, c = 0.8 - 0.6 exp(-0.3 (layer - 1))",
    source="Ye et al. 2024, arXiv:2410.05258, sec. 2.1",
    version=2,
)
class Differential(MultiHeadAttention):
    """The difference of two attention maps, so that what both attend to is cancelled.

    Each head has two queries and two keys of width d_k, so that with the default d_k this has more
    weights than `full`; in the paper d_k is half of d_v (``dims: {d_k: ...}``). All heads of an
    attention share the four vectors of l (the paper's lambda), which start as N(0, 0.1^2). The norm
    is an RMSNorm over each head's output with one gain for all heads, as in the authors' code.

    Raises:
        ValueError: with ``residual: realformer``, since there are two maps of scores.
    """

    has_negative_weights = True

    def add_parameters(self, dims: Dims, *, bias: bool) -> None:
        self.second_q = nn.Linear(dims.d_model, dims.n_heads * dims.d_k, bias=bias)
        self.second_k = nn.Linear(dims.d_model, dims.n_heads * dims.d_k, bias=bias)
        self.vectors = nn.Parameter(0.1 * torch.randn(2, 2, dims.d_k))  # (map, a or b, K)
        self.head_norm = nn.RMSNorm(dims.d_v, eps=1e-5)

    def linear_roles(self) -> Roles:
        roles = super().linear_roles()
        return roles | {self.second_q: roles[self.q], self.second_k: roles[self.k]}

    def queries(self, x: Tensor) -> Tensor:
        """Return both queries side by side, (B, H, T, 2 K)."""
        both = (split_heads(linear(x), self.n_heads) for linear in (self.q, self.second_q))
        return torch.cat([self.scaling.query(q) for q in both], dim=-1)

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return both keys side by side, (B, H, S, 2 K), and values (B, H, S, V)."""
        both = (split_heads(linear(source), self.n_heads) for linear in (self.k, self.second_k))
        k = torch.cat([self.scaling.key(k) for k in both], dim=-1)
        return k, split_heads(self.v(source), self.n_heads)

    def rotate(self, x: Tensor, position: Position, positions: Tensor) -> Tensor:
        return torch.cat([position.rotate(y, positions) for y in x.chunk(2, dim=-1)], dim=-1)

    def weights(self, q: Tensor, k: Tensor, context: AttentionContext) -> Tensor:
        pairs = zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)
        first, second = (super(Differential, self).weights(*pair, context) for pair in pairs)
        a, b = self.vectors.unbind(dim=1)
        exp = (a * b).sum(dim=-1).exp()  # (2,); not by prod: its gradient asks the host for zeros
        weight = exp[0] - exp[1] + _initial_lambda(context.layer)
        return (first - weight * second).to(first.dtype)

    def transform_heads(self, y: Tensor, x: Tensor, context: AttentionContext) -> Tensor:
        return self.head_norm(at_least_float32(y)).to(y.dtype) * (
            1 - _initial_lambda(context.layer)
        )

    def use_previous_scores(self) -> None:
        raise ValueError(
            "differential attention has two maps of scores, so that none can be added to those of "
            "the next layer; choose attention: full, or residual: post"
        )


def _initial_lambda(layer: int) -> float:
    """Return the constant c of l for the layer with this index, from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


@register(
    "latent",
    formula="c = rms(y Wc); head_h = softmax(s(x Wq_h, c Wk_h)) c Wv_h; out as full",
    source="DeepSeek-AI 2024, arXiv:2405.04434, sec. 2.1 (multi-head latent attention)",
)
class Latent(Attention):
    """Keys and values are made from one narrow vector for each token (MLA).

    Leaves out the separate rotary dimensions: an encoding rotates whole queries and keys. Queries
    are not compressed. Caches hold keys and values and not the vectors, with the same result.

    Args:
        rank: width of that vector; 4 d_k unless given, the paper's ratio.
        bias: whether the projections have one.
    """

    def __init__(
        self,
        dims: Dims,
        scaling: Scaling,
        dropout: Dropout,
        *,
        rank: PositiveInt | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(dims, scaling, dropout)
        width = rank or 4 * dims.d_k
        self.q = nn.Linear(dims.d_model, dims.n_heads * dims.d_k, bias=bias)
        self.compress = nn.Linear(dims.d_model, width, bias=bias)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.k = nn.Linear(width, dims.n_heads * dims.d_k, bias=bias)
        self.v = nn.Linear(width, dims.n_heads * dims.d_v, bias=bias)
        self.out = nn.Linear(dims.n_heads * dims.d_v, dims.d_model, bias=bias)

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        return super().keys_values(self.norm(at_least_float32(self.compress(source))))
