"""A feed-forward to start from.

B batch, T tokens, D d_model, F hidden width. Try it: ablate check my_feed_forward.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.feed_forward import AuxLosses, FeedForward
from ablate.registry import register


@register("my_feed_forward", formula="tanh(x W1 + b1) W2 + b2", source="you, 2026, sec. 1")
class MyFeedForward(FeedForward):
    """Two layers with a hyperbolic tangent.

    Args:
        d_ff: hidden width; 4 * d_model unless given.
    """

    def __init__(self, dims: Dims, dropout: float, *, d_ff: PositiveInt | None = None) -> None:
        super().__init__(dims, dropout, width=d_ff or 4 * dims.d_model)
        self.up = nn.Linear(dims.d_model, self.width)
        self.down = nn.Linear(self.width, dims.d_model)

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        hidden = self.dropout(torch.tanh(self.up(x)))  # (B, T, F)
        return self.down(self.hidden_norm(hidden))

    def output_layers(self) -> Sequence[nn.Linear]:
        return (self.down,)
