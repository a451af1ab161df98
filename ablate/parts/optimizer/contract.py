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
        extra_passes: passes forward and backward of a batch in a step, on average, beside those of
            the objective.
        shard_blocker: why the parts of a weight cannot be updated each by itself, such as "looks at
            whole matrices"; empty if they can, as where every element is treated by itself.
    """

    extra_passes: float = 0.0
    shard_blocker: ClassVar[str] = "does not declare that it treats every element by itself"

    def __init__(self) -> None:
        return

    @abstractmethod
    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters in ``groups``, with learning rates of 0."""


class Averaging(ABC):
    """Base of PyTorch optimizers that evaluate other weights than those that they train.

    The model holds the weights at which gradients are taken. Where it is evaluated, and where its
    weights are kept, training puts the averages in their place.
    """

    @abstractmethod
    def averages(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each weight that has made a step, and its average."""


class EstimatesCurvature(ABC):
    """Base of PyTorch optimizers that need an estimate of the loss' curvature at times.

    Before the steps 1, 1 + every, ... training samples labels from the model's own predictions, and
    computes the gradient of their cross-entropy for the optimizer.
    """

    @property
    @abstractmethod
    def every(self) -> int:
        """Return the number of steps from one estimate to the next."""

    @abstractmethod
    def add_curvature(self, n_tokens: int) -> None:
        """Take over an estimate.

        Args:
            n_tokens: the labels whose mean cross-entropy has the gradients that the weights have.
        """


class TorchOptimizer(Optimizer):
    """The contract of parts that are one class of PyTorch, with fixed arguments.

    Attributes:
        torch_class: makes the optimizer from parameter groups and ``arguments``.
        arguments: keyword arguments beside the groups.
    """

    torch_class: ClassVar[Callable[..., torch.optim.Optimizer]]
    arguments: dict[str, Any]

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return type(self).torch_class([group.to_torch() for group in groups], **self.arguments)
