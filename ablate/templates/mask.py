"""A mask of self-attention to start from.

B batch, T queries, S keys. Try it: ablate check my_mask.py
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from ablate.parts.dims import StackInfo
from ablate.parts.mask import Mask
from ablate.registry import register


@register(
    "my_mask",
    formula="as causal, and (key position mod stride = 0 or distance < stride)",
    source="you, 2026, sec. 1",
)
class MyMask(Mask):
    """A token attends to its neighbours and to every n-th token.

    Args:
        stride: n, and the size of the neighbourhood.
    """

    def __init__(self, stack_info: StackInfo, *, stride: PositiveInt = 4) -> None:
        super().__init__(stack_info)
        self.stride = stride

    def allowed(self, query_positions: Tensor, key_positions: Tensor, is_token: Tensor) -> Tensor:
        distance = (query_positions[:, None] - key_positions[None, :]).abs()
        is_pillar = key_positions[None, :] % self.stride == 0
        is_visible = (distance < self.stride) | is_pillar
        return super().allowed(query_positions, key_positions, is_token) & is_visible
