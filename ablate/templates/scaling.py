"""A scaling of attention scores to start from.

B batch, H n_heads, T queries, K d_k. Try it: ablate check my_scaling.py
"""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor

from ablate.parts.dims import Dims
from ablate.parts.scaling import Scaling
from ablate.registry import register


# `query` and `key` act before the dot product, `scores` after it. Override those that you need.
@register("my_scaling", formula="s(q, k) = q . k / d_k^power", source="you, 2026, sec. 1")
class MyScaling(Scaling):
    """Divide dot products by a power of the head width.

    Args:
        power: 0.5 is the paper's.
    """

    def __init__(self, dims: Dims, *, power: PositiveFloat = 0.75) -> None:
        super().__init__(dims)
        self.factor = dims.d_k**-power

    def query(self, q: Tensor) -> Tensor:
        return q * self.factor
