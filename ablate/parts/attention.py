"""Attention: how tokens look at one another.

B batch, T queries, S keys, D d_model, H n_heads, K d_k, V d_v. A mask is True where
attention is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.position import Position
from ablate.parts.scaling import Scaling
from ablate.registry import Part, register


class Cache:
    """Keys and values computed before, in buffers of a fixed size (B, H, length, K or V).

    Args:
        length: most tokens it can hold.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._buffers: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> Cache:
        """Return a full cache of keys ``k`` (B, H, S, K) and values ``v`` (B, H, S, V)."""
        cache = cls(k.size(2))
        cache._buffers = k, v
        return cache

    def first(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the first ``n`` keys and values."""
        assert self._buffers is not None, "nothing has been written yet"
        k, v = self._buffers
        return k[:, :, :n], v[:, :, :n]

    def extend(self, k: Tensor, v: Tensor, positions: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Write ``k`` and ``v`` at ``positions`` (T,); return the first ``n`` of each."""
        if self._buffers is None:
            self._buffers = self._empty(k), self._empty(v)
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            buffer.index_copy_(2, positions, new)
        return self.first(n)

    def select(self, rows: Tensor, n: int) -> None:
        """Keep ``rows`` (B',) of the batch, in that order, with their first ``n`` tokens.

        There are never more rows than before, so the buffers are reused.
        """
        if self._buffers is not None:
            k, v = (_select(buffer, rows, n) for buffer in self._buffers)
            self._buffers = k, v

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(*like.shape[:2], self.length, like.size(3))


def _select(buffer: Tensor, rows: Tensor, n: int) -> Tensor:
    kept = buffer[:, :, :n].index_select(0, rows)
    buffer = buffer[: rows.size(0)]
    buffer[:, :, :n] = kept
    return buffer


@dataclass(frozen=True)
class View:
    """What the queries of one attention may look at.

    Attributes:
        mask: True = may attend; broadcasts to (B, H, T, S).
        queries: positions of the queries, (T,).
        keys: positions of the keys, (S,).
        position: the stack's encoding; None where queries and keys share no axis.
        memory: whose keys and values to use (B, S, D); None: the queries' own sequence.
        known: keys and values computed before, in place of ``memory``.
        cache: where to keep the keys and values of the queries' own sequence.
    """

    mask: Tensor
    queries: Tensor
    keys: Tensor
    position: Position | None = None
    memory: Tensor | None = None
    known: tuple[Tensor, Tensor] | None = None
    cache: Cache | None = None


class Attention(nn.Module, Part, slot="attention"):
    """The contract: project to heads, weigh, and project back.

    A part gives the projections ``q``, ``k``, ``v`` and ``out`` and says how a sequence is split
    into heads. The kernel is written once, here, so that no two variants differ by it. Rows that
    may look at nothing attend everywhere equally instead of becoming NaN.

    Args:
        dims: widths and number of heads.
        scaling: what becomes of the dot products.
        dropout: of the attention weights.
        bias: whether the four projections have one.
    """

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    out: nn.Linear

    def __init__(self, dims: Dims, scaling: Scaling, dropout: float, *, bias: bool = True) -> None:
        super().__init__()
        self.n_heads = dims.n_heads
        self.scaling = scaling
        self.dropout = nn.Dropout(dropout)

    def queries(self, x: Tensor) -> Tensor:
        """Project ``x`` (B, T, D) to queries (B, H, T, K)."""
        return self._heads(self.q(x))

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project ``source`` (B, S, D) to keys (B, H, S, K) and values (B, H, S, V)."""
        return self._heads(self.k(source)), self._heads(self.v(source))

    def forward(self, x: Tensor, view: View) -> Tensor:
        """Return (B, T, D): what each query of ``x`` (B, T, D) finds in its ``view``."""
        q = self.queries(x)
        k, v = view.known or self.keys_values(x if view.memory is None else view.memory)
        if view.position is not None:
            q, k = (view.position.rotate(y, view.queries) for y in (q, k))
        if view.cache is not None:
            k, v = view.cache.extend(k, v, view.queries, view.keys.size(0))
        y = self.dropout(self._weights(q, k, view)) @ v  # (B, H, T, V)
        return self.out(y.transpose(1, 2).flatten(-2))

    def packed(self) -> Iterator[nn.Linear]:
        """Yield the projections that some programs keep, and initialise, as one matrix."""
        yield from (self.q, self.k, self.v)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, K)

    def _weights(self, q: Tensor, k: Tensor, view: View) -> Tensor:
        q, k = self.scaling.vectors(q, k)
        scores = self.scaling.scores(q @ k.transpose(-1, -2))  # (B, H, T, S)
        bias = None if view.position is None else view.position.bias(view.queries, view.keys)
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(~view.mask, lowest).softmax(dim=-1)


@register("full", source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2")
class Full(Attention):
    """Every head projects the whole width: softmax(x Wq (y Wk)^T) y Wv, joined by Wo."""

    def __init__(self, dims: Dims, scaling: Scaling, dropout: float, *, bias: bool = True) -> None:
        super().__init__(dims, scaling, dropout)
        d, h = dims.d_model, dims.n_heads
        self.q = nn.Linear(d, h * dims.d_k, bias=bias)
        self.k = nn.Linear(d, h * dims.d_k, bias=bias)
        self.v = nn.Linear(d, h * dims.d_v, bias=bias)
        self.out = nn.Linear(h * dims.d_v, d, bias=bias)


@register(
    "per_head_shared",
    source="A. Persson, 'Transformers from scratch' (tutorial code); not in the literature",
)
class PerHeadShared(Attention):
    """Each head sees only its own slice of the width, through projections that all heads share.

    Equal to `full` with the block-diagonal weights diag(W, ..., W), and so with 1 / n_heads^2
    of the weights in queries, keys and values.

    Raises:
        ValueError: if d_model is not a multiple of n_heads.
    """

    def __init__(self, dims: Dims, scaling: Scaling, dropout: float, *, bias: bool = True) -> None:
        super().__init__(dims, scaling, dropout)
        if dims.d_model % dims.n_heads:
            raise ValueError(
                "per_head_shared cuts the input into n_heads equal slices, so d_model "
                f"({dims.d_model}) must be a multiple of n_heads ({dims.n_heads})"
            )
        d_slice = dims.d_model // dims.n_heads
        self.q = nn.Linear(d_slice, dims.d_k, bias=bias)
        self.k = nn.Linear(d_slice, dims.d_k, bias=bias)
        self.v = nn.Linear(d_slice, dims.d_v, bias=bias)
        self.out = nn.Linear(dims.n_heads * dims.d_v, dims.d_model, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        return self.q(self._heads(x))

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        slices = self._heads(source)  # (B, H, S, D / H)
        return self.k(slices), self.v(slices)
