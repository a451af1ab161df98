"""What attends to what, and what a position encoding makes of distance.

H heads, T queries, S keys, K d_k, D d_model, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.model import Transformer
from ablate.parts.dims import Dims
from ablate.parts.position import Position

if TYPE_CHECKING:
    import pandas as pd

_MOST_POSITIONS = 64

Kind = Literal["embedding", "rotation", "bias"]


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one sub-layer for one sentence.

    Attributes:
        name: ``encoder.0``, ``decoder.0`` or ``cross.0``.
        weights: of every head, (H, T, S); each row sums to 1 unless a part changes it.
        queries: the T tokens that attend.
        keys: the S tokens that are attended to.
    """

    name: str
    weights: NDArray[np.float32]
    queries: list[str]
    keys: list[str]

    def head(self, number: int) -> pd.DataFrame:
        """Return the weights of one head, with tokens for labels."""
        import pandas as pd  # slow to import, and not needed to measure

        return pd.DataFrame(self.weights[number], index=self.queries, columns=self.keys)


@dataclass(frozen=True)
class Similarity:
    """How near an encoding puts a query and a key that are some tokens apart.

    Attributes:
        side: encoder or decoder.
        layer: number of the layer; None where all have the same.
        head: number of the head; None where all have the same.
        kind: ``embedding``: the cosine of the vectors that are added; ``rotation``: the mean cosine
            of a vector with itself, rotated to both positions; ``bias``: what is added to the score
            of a query without content.
        values: by distance, query less key; the mean over all such pairs of positions.
    """

    side: str
    layer: int | None
    head: int | None
    kind: Kind
    values: dict[int, float]


@torch.no_grad()
def similarities(model: Transformer, dims: Dims) -> list[Similarity]:
    """Return what the position encodings of both stacks make of distance.

    Nothing is said of what depends on the content of queries, as Shaw et al.'s terms do.

    Args:
        model: in evaluation mode.
        dims: its sizes.
    """
    n = min(_MOST_POSITIONS, dims.max_len)
    of_encodings: list[Similarity] = []
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        device = next(model.parameters()).device
        where = torch.arange(n, device=device)
        of_encodings += _of_embedding(side, stack.position, where, dims)
        layers = [
            list(_of_layer(side, layer, stack.position.at_layer(layer), where, dims))
            for layer in range(len(stack.order))
        ]
        of_encodings += _joined(layers)
    return of_encodings


def _of_embedding(side: str, position: Position, where: Tensor, dims: Dims) -> Iterator[Similarity]:
    zeros = torch.zeros(1, len(where), dims.d_model, device=where.device)
    added = position.embed(zeros, where)[0]  # (P, D)
    if added.any():
        unit = torch.nn.functional.normalize(added, dim=-1)
        yield Similarity(side, None, None, "embedding", _by_distance(unit @ unit.T))


def _of_layer(
    side: str, layer: int, position: Position, where: Tensor, dims: Dims
) -> Iterator[Similarity]:
    """Yield what one layer does: a rotation and a bias, for each head."""
    n, shape = len(where), (dims.d_k, dims.n_heads, len(where), dims.d_k)
    basis = torch.eye(dims.d_k, device=where.device)[:, None, None].expand(shape)
    rotated = position.rotate(basis, where)  # (K, H, P, K)
    if not torch.equal(rotated, basis):
        cosines = torch.einsum("khpc,khqc->hpq", rotated, rotated) / dims.d_k
        for head, each in enumerate(cosines):
            yield Similarity(side, layer, head, "rotation", _by_distance(each))
    q = torch.zeros(1, dims.n_heads, n, dims.d_k, device=where.device)
    bias = position.bias(q, where, where, layer)
    if bias is not None and bias.any():
        for head, each in enumerate(bias.expand(1, dims.n_heads, n, n)[0]):
            yield Similarity(side, layer, head, "bias", _by_distance(each))


def _by_distance(scores: Tensor) -> dict[int, float]:
    """Return the means of the diagonals of (P, P), of what is finite."""
    array = scores.float().cpu().numpy()
    of_encodings = {}
    for distance in range(1 - len(array), len(array)):
        diagonal = np.diagonal(array, -distance)
        finite = diagonal[np.isfinite(diagonal) & (diagonal > np.finfo(np.float32).min)]
        if len(finite):
            of_encodings[distance] = float(finite.mean())
    return of_encodings


def _joined(layers: list[list[Similarity]]) -> list[Similarity]:
    """Return similarities without the numbers of layers and heads where all have the same."""
    if all(_values(each) == _values(layers[0]) for each in layers[1:]):
        layers = [[_plain(each, has_layer=False) for each in layers[0]]]
    of_encodings: list[Similarity] = []
    for each in layers:
        for kind in dict.fromkeys(one.kind for one in each):
            heads = [one for one in each if one.kind == kind]
            same = all(one.values == heads[0].values for one in heads)
            of_encodings += [_plain(heads[0], has_head=False)] if same else heads
    return of_encodings


def _values(layer: list[Similarity]) -> list[tuple[str, int | None, dict[int, float]]]:
    return [(each.kind, each.head, each.values) for each in layer]


def _plain(each: Similarity, *, has_layer: bool = True, has_head: bool = True) -> Similarity:
    layer, head = each.layer if has_layer else None, each.head if has_head else None
    return Similarity(each.side, layer, head, each.kind, each.values)
