"""The contract of optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ablate.registry import Part

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Betas = tuple[Decay, Decay]


@dataclass(frozen=True)
class Group:
    """Parameters that share their settings.

    Attributes:
        parameters: in the order of the model.
        is_matrix: whether they are weight matrices of linear layers inside the stacks; tables,
            the output layer, biases and gains are not.
        rate: factor of the schedule's learning rate.
    """

    parameters: Sequence[nn.Parameter]
    is_matrix: bool
    rate: float = 1.0

    def to_torch(self) -> dict[str, Any]:
        """Return the group as a PyTorch parameter group with a learning rate of 0."""
        settings = {"lr": 0.0, "rate": self.rate, "is_matrix": self.is_matrix}
        return {"params": list(self.parameters), **settings}


class Optimizer(Part, slot="optimizer"):
    """The contract: make a PyTorch optimizer.

    Before every step the training loop sets the ``lr`` of each of its ``param_groups`` to the
    schedule's rate times that group's ``rate``.

    Attributes:
        extra_passes: forward and backward passes of one batch per step, on average, in addition to
            those of the objective.
        shard_blocker: why the rows of a weight cannot be updated separately, such as "looks at
            whole matrices"; empty if they can.
    """

    extra_passes: float = 0.0
    shard_blocker: ClassVar[str] = "does not declare that it treats every element by itself"

    def __init__(self) -> None:
        return

    @abstractmethod
    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters in ``groups``, with learning rates of 0."""


class Averaging(ABC):
    """Base of PyTorch optimizers whose model is evaluated with averages of its weights.

    The model holds the weights at which gradients are computed. Training replaces them by the
    averages where the model is evaluated and where its weights are stored.
    """

    @abstractmethod
    def averages(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each weight that has been updated, and its average."""


class EstimatesCurvature(ABC):
    """Base of PyTorch optimizers that need an estimate of the loss' curvature every few steps.

    Before the steps 1, 1 + every, ... training samples labels from the model's own predictions,
    computes the gradient of their cross-entropy and calls `add_curvature`.
    """

    @property
    @abstractmethod
    def every(self) -> int:
        """Return the number of steps from one estimate to the next."""

    @abstractmethod
    def add_curvature(self, n_tokens: int) -> None:
        """Update the estimate from the gradients of the parameters.

        Args:
            n_tokens: number of labels; the gradients are those of their mean cross-entropy.
        """


class TorchOptimizer(Optimizer):
    """The contract of parts that make a PyTorch optimizer of one class, with fixed arguments.

    Attributes:
        torch_class: the class.
        arguments: its keyword arguments, without the parameter groups.
    """

    torch_class: ClassVar[Callable[..., torch.optim.Optimizer]]

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return type(self).torch_class([group.to_torch() for group in groups], **self.arguments)
