"""What every attention has: a view, and one kernel.

B batch, T queries, S keys, D d_model, H n_heads, G heads of keys and values, K d_k, V d_v. A mask
is True where attention is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ablate.parts.attention.cache import Cache
from ablate.parts.dims import Dims, Dropout
from ablate.parts.dropout import ElementDropout
from ablate.parts.position import Position
from ablate.parts.scaling import Scaling
from ablate.registry import Part


@dataclass(frozen=True)
class AttentionContext:
    """What the queries of one attention may look at.

    Attributes:
        mask: True = may attend; broadcasts to (B, H, T, S).
        queries: positions of the queries, (T,).
        keys: positions of the keys, (S,); with a cache, from 0 on.
        position: the stack's encoding; None where queries and keys share no axis.
        memory: whose keys and values to use (B, S, D); None: the queries' own sequence.
        known: keys and values computed before, in place of ``memory``; of B rows, or of fewer, each
            of which is then shared by as many neighbouring rows of queries, such as beams.
        cache: where to keep the keys and values of the queries' own sequence.
        layer: the number of the layer in its stack, 0 first.
        previous_scores: the scores (B, H, T, S) of the same attention one layer below, if any, for
            residual schemes that add them up; each layer replaces them by its own.
    """

    mask: Tensor
    queries: Tensor
    keys: Tensor
    position: Position | None = None
    memory: Tensor | None = None
    known: tuple[Tensor, Tensor] | None = None
    cache: Cache | None = None
    layer: int = 0
    previous_scores: list[Tensor] = field(default_factory=list)


class Attention(nn.Module, Part, slot="attention"):
    """The contract: project to heads, weigh, and project back.

    A part gives the projections ``q``, ``k``, ``v`` and ``out``, says how a sequence is split
    into heads, and overrides the hooks it needs. The kernel is written once, here, so that no two
    variants differ by it. Rows that may look at nothing attend everywhere equally instead of
    becoming NaN.

    Args:
        dims: widths and number of heads.
        scaling: what becomes of queries, keys and their dot products.
        dropout: of the attention weights and of whole heads.
    """

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
        self.head_dropout = nn.Dropout2d(dropout.head)
        self.head_scale: nn.Parameter | None = None
        self.adds_up_scores = False

    def project_whole_width(self, dims: Dims, *, bias: bool) -> None:
        """Give it projections of the whole width, G = ``n_kv_heads`` of them for keys and values.

        Args:
            dims: widths.
            bias: whether the four have one.
        """
        self.q = nn.Linear(dims.d_model, self.n_heads * dims.d_k, bias=bias)
        self.k = nn.Linear(dims.d_model, self.n_kv_heads * dims.d_k, bias=bias)
        self.v = nn.Linear(dims.d_model, self.n_kv_heads * dims.d_v, bias=bias)
        self.out = nn.Linear(self.n_heads * dims.d_v, dims.d_model, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        """Project ``x`` (B, T, D) to queries (B, H, T, K), ready for the dot product."""
        return self.scaling.query(split_heads(self.q(x), self.n_heads))

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project ``source`` (B, S, D) to keys (B, G, S, K) and values (B, G, S, V).

        G is n_heads, or a divisor of it where heads share.
        """
        k, v = (split_heads(linear(source), self.n_kv_heads) for linear in (self.k, self.v))
        return self.scaling.key(k), v

    def mix_scores(self, scores: Tensor) -> Tensor:
        """Change the scores (B, H, T, S) of all heads together before mask and softmax."""
        return scores

    def mix_weights(self, weights: Tensor) -> Tensor:
        """Change the weights (B, H, T, S) of all heads together after the softmax."""
        return weights

    def scale_heads(self) -> None:
        """Give every head's output a factor that is trained, 1 at first (NormFormer)."""
        self.head_scale = nn.Parameter(torch.ones(self.n_heads))

    def add_up_scores(self) -> None:
        """Add to the scores those of the layer below (RealFormer)."""
        self.adds_up_scores = True

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Return (B, T, D): what each query of ``x`` (B, T, D) finds in its ``context``."""
        q, position = self.queries(x), context.position
        k, v = context.known or self.keys_values(x if context.memory is None else context.memory)
        if position is not None:
            q, k = (position.rotate(y, context.queries) for y in (q, k))
        if context.cache is not None:
            k, v = context.cache.extend(k, v, context.queries, context.keys.size(0))
        n_sharing = q.size(0) // k.size(0)
        q = _together(q, n_sharing)
        weights = self.dropout(self._weights(q, _spread(k, self.n_heads), context))
        y = _apart(weights @ _spread(v, self.n_heads), n_sharing)  # (B, H, T, V)
        if position is not None:
            y = _plus(y, position.values(weights, context.queries, context.keys, context.layer))
        if self.head_scale is not None:
            y = y * self.head_scale[:, None, None]
        return self.out(self.head_dropout(y).transpose(1, 2).flatten(-2))

    def packed(self) -> Iterator[nn.Linear]:
        """Yield the projections that some programs keep, and initialise, as one matrix."""
        yield from (self.q, self.k, self.v)

    def _weights(self, q: Tensor, k: Tensor, context: AttentionContext) -> Tensor:
        scores = self.scaling.scores(q @ k.transpose(-1, -2))  # (B, H, T, S)
        if context.position is not None:
            bias = context.position.bias(q, context.queries, context.keys, context.layer)
            scores = _plus(scores, bias)
        scores = self.mix_scores(scores)
        if self.adds_up_scores:
            scores = _plus(scores, *context.previous_scores)
            context.previous_scores[:] = [scores]
        seen = scores.masked_fill(~context.mask, torch.finfo(scores.dtype).min)
        precise = torch.promote_types(scores.dtype, torch.float32)
        return self.mix_weights(seen.softmax(dim=-1, dtype=precise).to(scores.dtype))


def split_heads(x: Tensor, n: int) -> Tensor:
    """Cut ``x`` (B, T, n K) into n heads, (B, n, T, K)."""
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def _spread(x: Tensor, n_heads: int) -> Tensor:
    """Repeat keys or values (B, G, S, K), each for all the heads that share it."""
    return x if x.size(1) == n_heads else x.repeat_interleave(n_heads // x.size(1), dim=1)


def _together(x: Tensor, n: int) -> Tensor:
    """Make the queries of ``n`` rows those of one: (B, H, T, K) to (B / n, H, n T, K)."""
    return x if n == 1 else x.unflatten(0, (-1, n)).transpose(1, 2).flatten(2, 3)


def _apart(x: Tensor, n: int) -> Tensor:
    """Undo `_together`: (B / n, H, n T, V) to (B, H, T, V)."""
    return x if n == 1 else x.unflatten(2, (n, -1)).transpose(1, 2).flatten(0, 1)


def _plus(x: Tensor, *others: Tensor | None) -> Tensor:
    for other in others:
        if other is not None:
            x = x + other.to(x.dtype)
    return x
