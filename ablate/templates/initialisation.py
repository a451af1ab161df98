"""An initialisation to start from. Try it: ablate check my_initialisation.py."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import nn

from ablate.parts.dims import Dims
from ablate.parts.initialisation import Initialisation
from ablate.parts.roles import Role
from ablate.registry import register


# `role` says what a linear layer is for: attention or feed-forward, and whether it ends a branch.
@register("my_initialisation", formula="W ~ N(0, gain^2 / fan_in)", source="you, 2026, sec. 1")
class MyInitialisation(Initialisation):
    """A normal distribution whose variance depends on the inputs alone; biases 0.

    Args:
        gain: factor of the standard deviation.
    """

    def __init__(self, dims: Dims, *, gain: PositiveFloat = 1.0) -> None:
        super().__init__(dims)
        self.gain = gain

    def weight(self, linear: nn.Linear, role: Role) -> None:
        nn.init.normal_(linear.weight, std=self.gain * linear.in_features**-0.5)
