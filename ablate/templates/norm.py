"""A norm to start from.

B batch, T tokens, D width. Try it: ablate check my_norm.py
"""

from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.norm import Norm
from ablate.registry import register


@register("my_norm", formula="gain x / (mean(|x|) + eps), gain trained", source="you, 2026, sec. 1")
class MyNorm(Norm):
    """Divide by the mean absolute value.

    Args:
        eps: added to the divisor.
    """

    def __init__(self, dims: Dims, *, eps: PositiveFloat = 1e-5) -> None:
        super().__init__(dims)
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(dims.d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x / (x.abs().mean(dim=-1, keepdim=True) + self.eps)
