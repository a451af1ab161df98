"""An optimizer to start from. Try it: ablate check my_optimizer.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field

from ablate.parts.optimizer import Group, Optimizer
from ablate.registry import register

Alpha = Annotated[float, Field(ge=0.0, lt=1.0)]


# The training loop sets the learning rate of every group before each step.
@register(
    "my_optimizer",
    formula="w <- w - lr g / (sqrt(v) + 1e-8); v: moving mean of g^2",
    source="you, 2026, sec. 1",
)
class MyOptimizer(Optimizer):
    """PyTorch's RMSprop.

    Args:
        alpha: decay of the moving mean.
    """

    def __init__(self, *, alpha: Alpha = 0.99) -> None:
        super().__init__()
        self.alpha = alpha

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop([group.to_torch() for group in groups], alpha=self.alpha)
