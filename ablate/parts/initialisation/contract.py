"""The contract of initialisations."""

from __future__ import annotations

from torch import nn

from ablate.parts.dims import Dims
from ablate.parts.initialisation.roles import Model, Role, linears, roles
from ablate.registry import Part


class Initialisation(Part, slot="initialisation"):
    """The contract: overwrite the weights of a whole model, in place.

    Args:
        dims: sizes.
    """

    def __init__(self, dims: Dims) -> None:
        self.dims = dims

    def initialise(self, model: Model) -> None:
        """Set every linear layer's weight with `weight` and its bias to 0."""
        known = roles(model)
        for linear in linears(model):
            self.weight(linear, known.get(linear, Role()))
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def weight(self, linear: nn.Linear, role: Role) -> None:
        """Set the weight of one linear layer."""
        raise NotImplementedError

    def rate(self, name: str, parameter: nn.Parameter) -> float:
        """Return the factor of the learning rate that a parameter of the model is trained with.

        Args:
            name: its path in the model.
            parameter: itself.
        """
        return 1.0
