"""The contract of initialisations."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

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
        """Set every linear layer's weight with `weight`, then its bias, if any, with `bias`."""
        known = roles(model)
        for linear in linears(model):
            self.weight(linear, known.get(linear, Role()))
            if linear.bias is not None:
                self.bias(linear.bias)

    @abstractmethod
    def weight(self, linear: nn.Linear, role: Role) -> None:
        """Set the weight of one linear layer."""

    def bias(self, bias: Tensor) -> None:
        """Set the bias of one linear layer; to 0, unless a part does otherwise."""
        nn.init.zeros_(bias)

    def rate(self, name: str, parameter: nn.Parameter) -> float:
        """Return the factor of the learning rate that a parameter of the model is trained with.

        Args:
            name: its path in the model.
            parameter: itself.
        """
        return 1.0
