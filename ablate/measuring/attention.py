"""Attention weights, and the similarity that a position encoding gives tokens by their distance.

H heads, T queries, S keys, K d_k, D d_model, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.model import Transformer
from ablate.parts.dims import Dims
from ablate.parts.position import Position
from ablate.parts.position.relative import MASKED_SCORE

if TYPE_CHECKING:
    import pandas as pd

_MOST_POSITIONS = 64

Kind = Literal["embedding", "rotation", "bias"]


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one sub-layer for one sentence."""

    name: str  # ``encoder.0``, ``decoder.0`` or ``cross.0``
    weights: NDArray[np.float32]  # of every head, (H, T, S); rows sum to 1 unless a part changes it
    queries: list[str]  # the T tokens that attend
    keys: list[str]  # the S tokens that are attended to

    def head(self, number: int) -> pd.DataFrame:
        """Return the weights of one head, with tokens for labels."""
        import pandas as pd  # slow to import, and not needed to measure

        return pd.DataFrame(self.weights[number], index=self.queries, columns=self.keys)


@dataclass(frozen=True)
class Similarity:
    """How similar an encoding makes a query and a key, by their distance in tokens.

    Of the kind ``embedding`` it is the cosine of the vectors that are added; of ``rotation`` the
    mean cosine of a vector with itself, rotated to both positions; of ``bias`` what is added to the
    score of a query without content.
    """

    side: str  # encoder or decoder
    layer: int | None  # None where all are equal, as for the head
    head: int | None
    kind: Kind
    values: dict[int, float]  # by query minus key; the mean over all pairs of positions


@torch.no_grad()
def similarities(model: Transformer, dims: Dims) -> list[Similarity]:
    """Return how the position encodings of both stacks relate tokens by their distance.

    Terms that depend on the content of queries, such as those of Shaw et al., are left out. The
    model is in evaluation mode.
    """
    device = next(model.parameters()).device
    positions = torch.arange(min(_MOST_POSITIONS, dims.max_len), device=device)
    of_model: list[Similarity] = []
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        zeros = torch.zeros(1, len(positions), dims.d_model, device=device)
        added = stack.position.embed(zeros, positions)[0]  # (P, D)
        if added.any():
            unit = torch.nn.functional.normalize(added, dim=-1)
            values = _by_distance(unit @ unit.T)
            of_model.append(Similarity(side, None, None, "embedding", values))
        layers = [
            list(_of_layer(side, layer, stack.position.at_layer(layer), positions, dims))
            for layer in range(len(stack.order))
        ]
        of_model += _merge_equal(layers)
    return of_model


def _of_layer(
    side: str, layer: int, encoding: Position, positions: Tensor, dims: Dims
) -> Iterator[Similarity]:
    """Yield the rotation and the bias of one layer, for each head."""
    n, shape = len(positions), (dims.d_k, dims.n_heads, len(positions), dims.d_k)
    basis = torch.eye(dims.d_k, device=positions.device)[:, None, None].expand(shape)
    rotated = encoding.rotate(basis, positions)  # (K, H, P, K)
    if not torch.equal(rotated, basis):
        unit = torch.nn.functional.normalize(rotated, dim=-1)  # yarn makes vectors longer, too
        cosines = torch.einsum("khpc,khqc->hpq", unit, unit) / dims.d_k
        for head, scores in enumerate(cosines):
            yield Similarity(side, layer, head, "rotation", _by_distance(scores))
    q = torch.zeros(1, dims.n_heads, n, dims.d_k, device=positions.device)
    bias = encoding.bias(q, positions, positions, layer)
    if bias is not None and bias.any():
        for head, scores in enumerate(bias.expand(1, dims.n_heads, n, n)[0]):
            yield Similarity(side, layer, head, "bias", _by_distance(scores))


def _by_distance(scores: Tensor) -> dict[int, float]:
    """Return the mean of the scores of keys that are not hidden, on each diagonal of (P, P)."""
    array = scores.float().cpu().numpy()
    means = {}
    for distance in range(1 - len(array), len(array)):
        diagonal = np.diagonal(array, -distance)
        visible = diagonal[np.isfinite(diagonal) & (diagonal > MASKED_SCORE)]
        if len(visible):
            means[distance] = float(visible.mean())
    return means


def _merge_equal(layers: list[list[Similarity]]) -> list[Similarity]:
    """Merge layers if all are equal, and the heads of a layer likewise."""
    unnumbered = [[replace(one, layer=None) for one in layer] for layer in layers]
    if all(layer == unnumbered[0] for layer in unnumbered):
        layers = unnumbered[:1]
    merged: list[Similarity] = []
    for layer in layers:
        for kind in dict.fromkeys(one.kind for one in layer):
            heads = [one for one in layer if one.kind == kind]
            are_equal = all(one.values == heads[0].values for one in heads)
            merged += [replace(heads[0], head=None)] if are_equal else heads
    return merged
