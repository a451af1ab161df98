"""The contract of initialisations."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.initialisation.roles import Model, roles
from ablate.parts.roles import Role
from ablate.registry import Part


class Initialisation(Part, slot="initialisation"):
    """The contract: overwrite the weights of a whole model, in place.

    Args:
        dims: sizes.
    """

    def __init__(self, dims: Dims) -> None:
        self.dims = dims

    def initialise(self, model: Model) -> None:
        """Set every linear layer's weight with `weight`, then its bias, if any, with `bias`."""
        for linear, role in roles(model).items():
            self.weight(linear, role)
            if linear.bias is not None:
                self.bias(linear.bias)

    @abstractmethod
    def weight(self, linear: nn.Linear, role: Role) -> None:
        """Set the weight of one linear layer."""

    def bias(self, bias: Tensor) -> None:
        """Set the bias of one linear layer, by default to 0."""
        nn.init.zeros_(bias)

    def rate(self, role: Role | None) -> float:
        """Return the factor of the learning rate of a parameter.

        Args:
            role: of the linear layer whose weight it is; None for every other parameter.
        """
        return 1.0
