"""The contract of attentions, with the scaled dot-product attention that all of them share.

B batch, T queries, S keys, D d_model, H n_heads, G heads of keys and values, K d_k, V d_v. A mask
is True where attention is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.parts.attention.cache import KVCache
from ablate.parts.dims import Dims, Dropout
from ablate.parts.dropout import ElementDropout, HeadDropout
from ablate.parts.position import Position
from ablate.parts.roles import Role, Roles, linear_layers
from ablate.parts.scaling import Scaling
from ablate.registry import Part

_VECTOR = 16  # numbers in single precision, of AVX-512


@dataclass(frozen=True)
class AttentionContext:
    """The inputs of one attention beside its queries."""

    mask: Tensor  # True = may attend; broadcasts to (B, H, T, S)
    query_positions: Tensor  # (T,)
    key_positions: Tensor  # (S,); with a cache, from 0 on
    position: Position | None = None  # the stack's encoding; None in cross-attention
    memory: Tensor | None = None  # (B, S, D), source of keys and values; None: the queries'
    # Keys and values in place of `memory`: B rows, or B / n, which n neighbouring queries share
    memory_kv: tuple[Tensor, Tensor] | None = None
    cache: KVCache | None = None  # of the queries' own sequence; new keys and values are appended
    layer: int = 0  # in its stack, from 0
    # The scores (B, H, T, S) of the layer below, if any, which each layer replaces by its own
    previous_scores: list[Tensor] = field(default_factory=list)
    # The values (B, H, T, V) of the lowest layer once they are computed
    first_values: list[Tensor] = field(default_factory=list)

    @property
    def is_self_attention(self) -> bool:
        """Return whether keys and values are made from the sequence of the queries."""
        return self.memory is None and self.memory_kv is None


class Attention(nn.Module, Part, slot="attention"):
    """The contract: project to heads, take a weighted mean of values, and project back.

    A part makes the projections ``q``, ``k``, ``v`` and ``out`` and overrides the hooks it needs.
    Scores, mask, softmax and dropout are computed in this class alone, so that variants differ only
    by their hooks. A query without any allowed key attends to all keys equally, or with `sink` and
    `sigmoid` to none, instead of becoming NaN.

    Args:
        dims: widths and number of heads.
        scaling: changes queries, keys and their dot products.
        dropout: rates for the attention weights and for whole heads.

    Attributes:
        counts_keys: whether weights depend on how many keys the mask allows, so that a position
            encoding must not hide more of them.
        has_negative_weights: whether weights may be negative, so that they are no shares.
    """

    counts_keys: ClassVar[bool] = False
    has_negative_weights: ClassVar[bool] = False

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    out: nn.Linear

    def __init__(self, dims: Dims, scaling: Scaling, dropout: Dropout) -> None:
        super().__init__()
        self.n_heads = dims.n_heads
        self.n_kv_heads = dims.n_heads
        self.scaling = scaling
        self.dropout = ElementDropout(dropout.attention)
        self.head_dropout = HeadDropout(dropout)
        self.head_scale: nn.Parameter | None = None
        self.uses_previous_scores = False

    def make_projections(self, dims: Dims, *, bias: bool) -> None:
        """Make the projections for H heads of queries and G = ``n_kv_heads`` of keys and values."""
        self.q = nn.Linear(dims.d_model, self.n_heads * dims.d_k, bias=bias)
        self.k = nn.Linear(dims.d_model, self.n_kv_heads * dims.d_k, bias=bias)
        self.v = nn.Linear(dims.d_model, self.n_kv_heads * dims.d_v, bias=bias)
        self.out = nn.Linear(self.n_heads * dims.d_v, dims.d_model, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        """Project ``x`` (B, T, D) to queries (B, H, T, K), scaled for the dot product."""
        return self.scaling.query(split_heads(self.q(x), self.n_heads))

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project ``source`` (B, S, D) to keys (B, G, S, K) and values (B, G, S, V).

        G is n_heads, or a divisor of it where heads share.
        """
        k, v = (split_heads(linear(source), self.n_kv_heads) for linear in (self.k, self.v))
        return self.scaling.key(k), v

    def rotate(self, x: Tensor, position: Position, positions: Tensor) -> Tensor:
        """Apply a rotary encoding to queries or keys ``x`` (B, H, T, K) at ``positions`` (T,)."""
        return position.rotate(x, positions)

    def mix_values(self, v: Tensor, context: AttentionContext) -> Tensor:
        """Change the values (B, G, T, V) of new tokens before they are cached."""
        return v

    def mix_scores(self, scores: Tensor) -> Tensor:
        """Change the scores (B, H, T, S) of all heads together before mask and softmax."""
        return scores

    def mix_weights(self, weights: Tensor) -> Tensor:
        """Change the weights (B, H, T, S) of all heads together after the softmax."""
        return weights

    def normalise(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return attention weights (B, H, T, S), in single precision or better.

        Masked ``scores`` (B, H, T, S) are the lowest number of their type.
        """
        return softmax(scores)

    def transform_heads(self, y: Tensor, x: Tensor, context: AttentionContext) -> Tensor:
        """Change the heads' outputs ``y`` (B, H, T, V); ``x`` (B, T, D) are the query inputs."""
        return y

    def add_head_scale(self) -> None:
        """Add a trained factor for every head's output, 1 at first (NormFormer)."""
        self.head_scale = nn.Parameter(torch.ones(self.n_heads))

    def use_previous_scores(self) -> None:
        """From now on add the scores of the layer below to the scores (RealFormer)."""
        self.uses_previous_scores = True

    def linear_roles(self) -> Roles:
        """Return the role of every linear layer of the attention."""
        roles = dict.fromkeys(linear_layers(self), Role(kind="attention"))
        return roles | {
            self.q: Role(kind="attention", is_packed=True, is_query=True),
            self.k: Role(kind="attention", is_packed=True),
            self.v: Role(kind="attention", is_packed=True, is_value=True),
            self.out: Role(kind="attention", ends_branch=True),
        }

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Return the attention's output (B, T, D) for the queries ``x`` (B, T, D)."""
        q, position = self.queries(x), context.position
        memory = x if context.memory is None else context.memory
        k, v = context.memory_kv or self.keys_values(memory)
        if position is not None:
            q, k = (self.rotate(y, position, context.query_positions) for y in (q, k))
        v = self.mix_values(v, context)
        if context.cache is not None:
            k, v = context.cache.extend(
                k, v, context.query_positions, context.key_positions.size(0)
            )
        n_beams = q.size(0) // k.size(0)
        if n_beams > 1:  # the queries of neighbouring rows share keys: (B / n, H, n T, K)
            q = q.unflatten(0, (-1, n_beams)).transpose(1, 2).flatten(2, 3)
        weights = self.dropout(self.weights(q, _repeat_heads(k, self.n_heads), context))
        y = weights @ _repeat_heads(v, self.n_heads)
        if n_beams > 1:
            y = y.unflatten(2, (n_beams, -1)).transpose(1, 2).flatten(0, 1)  # (B, H, T, V)
        if position is not None:
            positions = context.query_positions, context.key_positions
            y = _add(y, position.values(weights, *positions, context.layer))
        y = self.transform_heads(y, x, context)
        if self.head_scale is not None:
            y = y * self.head_scale[:, None, None]
        return self.out(self.head_dropout(y).transpose(1, 2).flatten(-2))

    def weights(self, q: Tensor, k: Tensor, context: AttentionContext) -> Tensor:
        """Return the weights (B, H, T, S) of keys ``k`` (B, H, S, K) for queries (B, H, T, K)."""
        scores = self.scaling.scores(q @ k.transpose(-1, -2))  # (B, H, T, S)
        if context.position is not None:
            positions = context.query_positions, context.key_positions
            scores = _add(scores, context.position.bias(q, *positions, context.layer))
        scores = self.mix_scores(scores)
        if self.uses_previous_scores:
            scores = _add(scores, *context.previous_scores)
            context.previous_scores[:] = [scores]
        masked = scores.masked_fill(~context.mask, torch.finfo(scores.dtype).min)
        return self.mix_weights(self.normalise(masked, context.mask).to(scores.dtype))


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax of ``scores`` (..., S) over keys, in single precision or better.

    On a CPU PyTorch takes ten times as long for rows that are shorter than a vector of the CPU. In
    bf16 they are filled up with keys of weight 0. Not so in fp32, where a run's numbers would be
    others than before, in the last bit.
    """
    n_keys, dtype = scores.size(-1), torch.promote_types(scores.dtype, torch.float32)
    is_slow = scores.is_cpu and scores.dtype == torch.bfloat16 and n_keys < _VECTOR
    if not is_slow or torch.compiler.is_compiling():
        return scores.softmax(dim=-1, dtype=dtype)
    filled = F.pad(scores, (0, _VECTOR - n_keys), value=-torch.inf)
    return filled.softmax(dim=-1, dtype=dtype)[..., :n_keys]


def split_heads(x: Tensor, n: int) -> Tensor:
    """Split ``x`` (B, T, n K) into n heads, (B, n, T, K)."""
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def _repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """Repeat each head of keys or values (B, G, S, K) for all heads of queries that share it."""
    return x if x.size(1) == n_heads else x.repeat_interleave(n_heads // x.size(1), dim=1)


def _add(x: Tensor, *terms: Tensor | None) -> Tensor:
    """Return ``x`` plus those ``terms`` that are not None."""
    for term in terms:
        if term is not None:
            x = x + term.to(x.dtype)
    return x
