"""Encodings of how far a key stands from a query, which act on the scores of self-attention.

B batch, T queries, S keys, H n_heads, K d_k, V d_v. A query stands at i, a key at j.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import Dims, StackInfo
from ablate.parts.position.contract import Position
from ablate.registry import register

BucketCount = Annotated[int, Field(ge=4, multiple_of=2)]

_NEVER = -1e9  # a score whose weight is 0; an infinity would be NaN once scores are mixed


@register(
    "shaw",
    formula="s_ij = s(q_i, k_j + aK_c), z_i = sum_j w_ij (v_j + aV_c), c = clip(j - i, -k, k)",
    source="Shaw et al. 2018, arXiv:1803.02155, sec. 3.2",
)
class Shaw(Position):
    """Add to every key and value a trained vector for its distance from the query.

    Every layer has vectors of its own, and all heads of a layer share them. The term of the keys
    is scaled like the dot product; of `scaling` it passes what is done to queries, not what is done
    to keys or scores.

    Args:
        dims: gives the widths d_k and d_v.
        stack_info: gives the number of layers.
        k: the distance, in tokens, past which all distances are one; 16 in the paper.
        values: whether values have their vectors too; the paper finds them dispensable (table 3).
    """

    def __init__(
        self, dims: Dims, stack_info: StackInfo, *, k: PositiveInt = 16, values: bool = True
    ) -> None:
        super().__init__(dims, stack_info)
        self.k = k
        self.key_vectors = _vectors(stack_info.n_layers, k, dims.d_k)
        self.value_vectors = _vectors(stack_info.n_layers, k, dims.d_v) if values else None

    def bias(self, q: Tensor, queries: Tensor, keys: Tensor, layer: int) -> Tensor:
        vectors = self._between(queries, keys, self.key_vectors[layer])  # (T, S, K)
        return torch.einsum("bhtk,tsk->bhts", q, vectors)

    def values(self, weights: Tensor, queries: Tensor, keys: Tensor, layer: int) -> Tensor | None:
        if self.value_vectors is None:
            return None
        vectors = self._between(queries, keys, self.value_vectors[layer])  # (T, S, V)
        return torch.einsum("bhts,tsv->bhtv", weights, vectors)

    def _between(self, queries: Tensor, keys: Tensor, table: Tensor) -> Tensor:
        distance = _ahead(queries, keys).clamp(-self.k, self.k)
        return nn.functional.embedding(distance + self.k, table)


@register(
    "t5",
    formula="s_ij = s(q_i, k_j) + b[bucket(j - i), head]",
    source="Raffel et al. 2020, arXiv:1910.10683, sec. 2.1; bucket: mesh_tensorflow",
)
class T5(Position):
    """Add to the score a trained number for the distance, by head, in ever wider buckets of it.

    Half of the buckets are for one distance each, from 0 on; the others widen geometrically, and
    the last one takes whatever is farther. In the encoder half of all buckets are for keys behind
    the query, where distance 0 belongs, and half for keys ahead; in the decoder all are for keys
    behind. One table serves all layers of the stack. It starts as N(0, 1 / d_model), as in Hugging
    Face's T5; T5 itself goes with ``scaling: none``.

    Args:
        dims: gives the number of heads.
        stack_info: which stack; the decoder looks back only.
        n_buckets: numbers per head; 32 in T5.
        max_distance: in tokens, where one bucket more would begin, so that from there on, at the
            latest, all distances are one; 128 in T5.

    Raises:
        ValueError: if max_distance does not reach past the buckets of one distance each.
    """

    begins: Tensor  # the first distance of each bucket but the first, ascending

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        n_buckets: BucketCount = 32,
        max_distance: PositiveInt = 128,
    ) -> None:
        super().__init__(dims, stack_info)
        self.is_causal = stack_info.side == "decoder"
        self.n_behind = n_buckets if self.is_causal else n_buckets // 2
        if max_distance <= self.n_behind // 2:
            raise ValueError(
                f"t5 with {n_buckets} buckets gives distances below {self.n_behind // 2} one "
                f"bucket each in the {stack_info.side}, so max_distance ({max_distance}) must be "
                f"larger than that; say fewer buckets (n_buckets) or a larger max_distance"
            )
        begins = torch.tensor(_begins(self.n_behind, max_distance))
        self.register_buffer("begins", begins, persistent=False)
        self.table = nn.Parameter(torch.empty(n_buckets, dims.n_heads))
        nn.init.normal_(self.table, std=dims.d_model**-0.5)

    def bias(self, q: Tensor, queries: Tensor, keys: Tensor, layer: int) -> Tensor:
        ahead = _ahead(queries, keys)
        numbers = nn.functional.embedding(self._bucket(ahead), self.table)  # (T, S, H)
        return numbers.permute(2, 0, 1)

    def _bucket(self, ahead: Tensor) -> Tensor:
        if self.is_causal:
            return torch.bucketize((-ahead).clamp(min=0), self.begins, right=True)
        bucket = torch.bucketize(ahead.abs(), self.begins, right=True)
        return torch.where(ahead > 0, bucket + self.n_behind, bucket)


@register(
    "alibi",
    formula="s_ij = s(q_i, k_j) - m_h |i - j|, m_h = 2^(-8h / H) for head h = 1 ... H",
    source="Press et al. 2022, arXiv:2108.12409, sec. 3; encoder: issue 5 of the authors' code",
)
class ALiBi(Position):
    """Take from the score a multiple of the distance, fixed for each head; nothing is trained.

    Where the number of heads is no power of 2, the formula is that of the power of 2 below it,
    and the heads past that get every second slope of the power above, as in the authors' code.

    Args:
        dims: gives the number of heads.
        stack_info: which stack.
        encoder: what becomes of keys ahead of the query, which the paper's decoder never sees.
            ``symmetric``: they are as far as keys behind. ``asymmetric``: the first half of the
            heads sees only keys behind, the second half only keys ahead, the two with the same
            slopes; not to be joined with heads that mix their scores. The decoder is one and the
            same for both.

    Raises:
        ValueError: if the heads of an asymmetric encoder have no half.
    """

    slopes: Tensor  # (H,)
    sides: Tensor  # (H,), which way a head looks: -1 back, 1 ahead, 0 both

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        encoder: Literal["symmetric", "asymmetric"] = "symmetric",
    ) -> None:
        super().__init__(dims, stack_info)
        n_heads = dims.n_heads
        slopes, sides = _slopes(n_heads), [0] * n_heads
        if stack_info.side == "encoder" and encoder == "asymmetric":
            if n_heads % 2:
                raise ValueError(
                    "an asymmetric alibi lets half of the encoder's heads look back and half "
                    f"ahead, so n_heads ({n_heads}) must be even; say an even number of heads, "
                    "or encoder: symmetric"
                )
            slopes = _slopes(n_heads // 2) * 2
            sides = [-1] * (n_heads // 2) + [1] * (n_heads // 2)
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)
        self.register_buffer("sides", torch.tensor(sides), persistent=False)

    def bias(self, q: Tensor, queries: Tensor, keys: Tensor, layer: int) -> Tensor:
        ahead = _ahead(queries, keys)
        away = self.sides[:, None, None] * ahead < 0  # (H, T, S)
        return (-self.slopes[:, None, None] * ahead.abs()).masked_fill(away, _NEVER)


def _ahead(queries: Tensor, keys: Tensor) -> Tensor:
    """Return by how many tokens each key stands ahead of each query, (T, S)."""
    return keys[None, :] - queries[:, None]


def _vectors(n_layers: int, k: int, width: int) -> nn.Parameter:
    """Return (n_layers, 2k + 1, width) vectors for the distances -k to k, as tensor2tensor's."""
    vectors = nn.Parameter(torch.empty(n_layers, 2 * k + 1, width))
    for layer in vectors.detach():
        nn.init.xavier_uniform_(layer)
    return vectors


def _begins(n_buckets: int, max_distance: int) -> list[int]:
    """Return the first distance of each bucket but the first."""
    n_single = n_buckets // 2
    n_wide = n_buckets - n_single
    growth = max_distance / n_single
    # a power that is a whole number comes out a rounding error above it now and then
    wide = [
        math.ceil(round(n_single * growth ** (step / n_wide), ndigits=9)) for step in range(n_wide)
    ]
    return [*range(1, n_single), *wide]


def _slopes(n_heads: int) -> list[float]:
    power = 1 << (n_heads.bit_length() - 1)
    n_past = n_heads - power
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes + [2 ** (-4 * head / power) for head in range(1, 2 * n_past, 2)]
