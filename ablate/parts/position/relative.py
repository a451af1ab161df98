"""Encodings of the distance between key and query, which act on the scores of self-attention.

B batch, T queries, S keys, H n_heads, K d_k, V d_v. A query has position i, a key position j.
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

_MIN_FACTOR = 0.01
MASKED_SCORE = -1e9  # gives a weight of 0; an infinity would become NaN where heads are mixed


@register(
    "shaw",
    formula="s_ij = s(q_i, k_j + aK_c), z_i = sum_j w_ij (v_j + aV_c), c = clip(j - i, -k, k)",
    source="Shaw et al. 2018, arXiv:1803.02155, sec. 3.2",
)
class Shaw(Position):
    """Add to every key and value a trained vector for its distance from the query.

    The vectors differ by layer, and all heads of a layer share them. The term of the keys is the
    product with the query after `scaling` has changed it; the changes that `scaling` makes to keys
    or scores do not apply to it.

    Args:
        k: the largest distance, in tokens, with its own vector, which larger ones share; 16 in the
            paper.
        values: whether there are vectors for values too; in the paper they do not help (table 3).
    """

    def __init__(
        self, dims: Dims, stack_info: StackInfo, *, k: PositiveInt = 16, values: bool = True
    ) -> None:
        super().__init__(dims, stack_info)
        self.k = k
        self.key_vectors = _vectors(stack_info.n_layers, k, dims.d_k)
        self.value_vectors = _vectors(stack_info.n_layers, k, dims.d_v) if values else None

    def bias(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int) -> Tensor:
        table = self.key_vectors[layer]
        vectors = self._look_up(query_positions, key_positions, table)  # (T, S, K)
        return torch.einsum("bhtk,tsk->bhts", q, vectors)

    def values(
        self, weights: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int
    ) -> Tensor | None:
        if self.value_vectors is None:
            return None
        table = self.value_vectors[layer]
        vectors = self._look_up(query_positions, key_positions, table)  # (T, S, V)
        return torch.einsum("bhts,tsv->bhtv", weights, vectors)

    def _look_up(self, query_positions: Tensor, key_positions: Tensor, table: Tensor) -> Tensor:
        distance = _distance(query_positions, key_positions).clamp(-self.k, self.k)
        return nn.functional.embedding(distance + self.k, table)


@register(
    "t5",
    formula="s_ij = s(q_i, k_j) + b[bucket(j - i), head]",
    source="Raffel et al. 2020, arXiv:1910.10683, sec. 2.1; bucket: mesh_tensorflow",
)
class T5(Position):
    """Add to the score a trained bias for the bucket of the distance and the head.

    Half of the buckets are for one distance each, from 0 on; the widths of the others grow
    geometrically, and the last one holds all larger distances. In the encoder half of all buckets
    are for keys before the query, distance 0 included, and half for keys after it; in the decoder
    all are for keys before. All layers of the stack share one table. It is initialised with
    N(0, 1 / d_model), as in Hugging Face's T5. T5 itself has ``scaling: none``.

    Args:
        n_buckets: biases per head; 32 in T5.
        max_distance: all distances from this one on, in tokens, are in the last bucket, whose end
            it would be; 128 in T5.

    Raises:
        ValueError: if max_distance is not larger than the buckets of one distance each.
    """

    bucket_starts: Tensor  # the first distance of each bucket but the first, ascending

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
        self.n_before = n_buckets if self.is_causal else n_buckets // 2
        if max_distance <= self.n_before // 2:
            raise ValueError(
                f"t5 with {n_buckets} buckets gives distances below {self.n_before // 2} one "
                f"bucket each in the {stack_info.side}, so max_distance ({max_distance}) must be "
                f"larger than that; choose fewer buckets (n_buckets) or a larger max_distance"
            )
        starts = torch.tensor(_bucket_starts(self.n_before, max_distance))
        self.register_buffer("bucket_starts", starts, persistent=False)
        self.table = nn.Parameter(torch.empty(n_buckets, dims.n_heads))
        nn.init.normal_(self.table, std=dims.d_model**-0.5)

    def bias(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int) -> Tensor:
        distance = _distance(query_positions, key_positions)
        if self.is_causal:
            bucket = torch.bucketize((-distance).clamp(min=0), self.bucket_starts, right=True)
        else:
            bucket = torch.bucketize(distance.abs(), self.bucket_starts, right=True)
            bucket = torch.where(distance > 0, bucket + self.n_before, bucket)
        return nn.functional.embedding(bucket, self.table).permute(2, 0, 1)  # (H, T, S)


@register(
    "alibi",
    formula="s_ij = s(q_i, k_j) - m_h |i - j|, m_h = 2^(-8h / H) for head h = 1 ... H",
    source="Press et al. 2022, arXiv:2108.12409, sec. 3; encoder: issue 5 of the authors' code",
)
class ALiBi(Position):
    """Subtract from the score a multiple of the distance, fixed for each head.

    If the number of heads is not a power of 2, the first heads have the slopes of the power of 2
    below it, and the others every second slope of the power above, as in the authors' code.

    Args:
        encoder: the treatment of keys after the query, which the paper's decoder does not have.
            ``symmetric``: the same bias as for keys before it. ``asymmetric``: the first half of
            the heads attends only to keys up to the query, the second half only to keys from it on,
            both with the same slopes; refused with attentions that mix the scores of heads or count
            keys (talking_heads, sigmoid). The decoder is the same for both.

    Raises:
        ValueError: if an asymmetric encoder has an odd number of heads.
    """

    slopes: Tensor  # (H,)
    sides: Tensor  # (H,), the keys that a head attends to: -1 before, 1 after, 0 both

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
                    "asymmetric alibi lets half of the encoder's heads attend backwards and half "
                    f"forwards, so n_heads ({n_heads}) must be even; give an even number of heads, "
                    "or choose encoder: symmetric"
                )
            slopes = _slopes(n_heads // 2) * 2
            sides = [-1] * (n_heads // 2) + [1] * (n_heads // 2)
            self.hides_keys_from_heads = "asymmetric alibi hides keys from half of the heads"
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)
        self.register_buffer("sides", torch.tensor(sides), persistent=False)

    def bias(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int) -> Tensor:
        distance = _distance(query_positions, key_positions)
        is_masked = self.sides[:, None, None] * distance < 0  # (H, T, S)
        bias = -self.slopes[:, None, None] * distance.abs()
        return bias.masked_fill(is_masked, MASKED_SCORE)


@register(
    "kerple",
    formula="s_ij = s(q_i, k_j) - a_h ln(1 + b_h |i - j|), a, b trained, at least 0.01",
    source="Chi et al. 2022, arXiv:2205.09921, sec. 4.2 (KERPLE, logarithmic), and their code",
)
class Kerple(Position):
    """Subtract from the score a multiple of the logarithm of the distance, trained for each head.

    The factors differ by layer. At first a ~ U(0, 2) and b ~ U(0, 1). Instead of values below 0.01,
    0.01 is used, and they get no gradient; the authors' code raises the parameter itself to 0.01,
    so that it goes on being trained. In the encoder, which the paper does not have, keys after the
    query are treated like those before it.
    """

    def __init__(self, dims: Dims, stack_info: StackInfo) -> None:
        super().__init__(dims, stack_info)
        self.factors = nn.Parameter(2 * torch.rand(stack_info.n_layers, dims.n_heads))
        self.slopes = nn.Parameter(torch.rand(stack_info.n_layers, dims.n_heads))

    def bias(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int) -> Tensor:
        distance = _distance(query_positions, key_positions).abs()
        factor = self.factors[layer].clamp(min=_MIN_FACTOR)[:, None, None]
        slope = self.slopes[layer].clamp(min=_MIN_FACTOR)[:, None, None]
        return -factor * torch.log1p(slope * distance)  # (H, T, S)


def _distance(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Return j - i, by how many tokens each key is after each query, (T, S)."""
    return key_positions[None, :] - query_positions[:, None]


def _vectors(n_layers: int, k: int, width: int) -> nn.Parameter:
    """Return vectors (n_layers, 2k + 1, width) for distances -k to k, drawn as in tensor2tensor."""
    vectors = nn.Parameter(torch.empty(n_layers, 2 * k + 1, width))
    for layer in vectors.detach():
        nn.init.xavier_uniform_(layer)
    return vectors


def _bucket_starts(n_buckets: int, max_distance: int) -> list[int]:
    """Return the first distance of each bucket but the first."""
    n_single = n_buckets // 2
    n_wide = n_buckets - n_single
    growth = max_distance / n_single
    # the computed power may exceed an integer that it equals by a rounding error
    wide = [
        math.ceil(round(n_single * growth ** (step / n_wide), ndigits=9)) for step in range(n_wide)
    ]
    return [*range(1, n_single), *wide]


def _slopes(n_heads: int) -> list[float]:
    power = 1 << (n_heads.bit_length() - 1)
    n_others = n_heads - power
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes + [2 ** (-4 * head / power) for head in range(1, 2 * n_others, 2)]
