"""Scaling: what becomes of the dot products before their softmax.

B batch, T queries, S keys, H n_heads, K d_k.
"""

from __future__ import annotations

from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.registry import Part, register


class Scaling(nn.Module, Part, slot="scaling"):
    """The contract: two hooks, on either side of the dot product; both change nothing here."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def vectors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries (B, H, T, K) and keys (B, H, S, K) before their dot product."""
        return q, k

    def scores(self, scores: Tensor) -> Tensor:
        """Change the dot products (B, H, T, S) before masking and softmax."""
        return scores


@register("none", source="Luong et al. 2015, arXiv:1508.04025, sec. 3.1 (dot)")
class NoScaling(Scaling):
    """Plain dot products: softmax(q k^T)."""


@register("sqrt_dk", source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.1")
class SqrtDk(Scaling):
    """softmax(q k^T / sqrt(d_k)): unit variance for queries and keys of unit variance."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = dims.d_k**-0.5

    def vectors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q * self.factor, k


@register("sqrt_dmodel", source="a popular misreading of Vaswani et al. 2017, sec. 3.2.1")
class SqrtDmodel(Scaling):
    """softmax(q k^T / sqrt(d_model)): sqrt(n_heads) times flatter than the paper's."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = dims.d_model**-0.5

    def vectors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q * self.factor, k
