"""A position encoding to start from.

B batch, T tokens, D d_model. Try it: ablate check my_position.py
"""

from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import Dims, StackInfo
from ablate.parts.position import Position
from ablate.registry import register


# `embed` changes embeddings; other hooks of the contract are `rotate` (queries and keys), `bias`
# (added to the scores) and `values` (added to the heads' outputs). Override those that you need.
@register("my_position", formula="x_p = e_p + scale P_p, P trained", source="you, 2026, sec. 1")
class MyPosition(Position):
    """Add a trained vector per position, times a factor.

    Args:
        scale: of the vectors.
    """

    def __init__(self, dims: Dims, stack_info: StackInfo, *, scale: PositiveFloat = 1.0) -> None:
        super().__init__(dims, stack_info)
        self.scale = scale
        self.table = nn.Parameter(torch.randn(dims.max_len, dims.d_model) * dims.d_model**-0.5)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.scale * self.table[positions]
