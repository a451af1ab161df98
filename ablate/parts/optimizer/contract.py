"""The contract of optimizers, and bases that several of them share."""

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

State = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Parameters that share their settings, in the order of the model."""

    parameters: Sequence[nn.Parameter]
    # Weight matrices of linear layers inside the stacks; no tables, output layer, biases and gains
    is_matrix: bool
    rate: float = 1.0  # factor of the schedule's learning rate

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
        """Update the estimate from the gradients of the mean cross-entropy of so many labels."""


class TorchOptimizer(Optimizer):
    """The contract of parts that make a PyTorch optimizer of one class, with fixed arguments."""

    torch_class: ClassVar[Callable[..., torch.optim.Optimizer]]

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return type(self).torch_class([group.to_torch() for group in groups], **self.arguments)


class PerParameter(torch.optim.Optimizer):
    """The contract of optimizers that treat every parameter by itself."""

    def __init__(self, groups: list[dict[str, Any]], **settings: Any) -> None:
        super().__init__(groups, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make one step; the gradients must have been computed."""
        assert closure is None, "a closure is not supported"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    self.update(parameter, parameter.grad, state, group)

    @abstractmethod
    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        """Change a parameter ``w`` in place, given its gradient ``g`` and the group's settings.

        Its ``state`` is kept from step to step; ``step`` in it is the number of this one.
        """


def moving_mean(state: State, name: str, x: Tensor, decay: float) -> Tensor:
    """Update the moving mean of ``x`` in ``state[name]``; return it without bias correction."""
    if name not in state:
        state[name] = torch.zeros_like(x)
    mean: Tensor = state[name]
    return mean.lerp_(x, 1 - decay)


def adam_moments(state: State, g: Tensor, betas: Betas) -> tuple[Tensor, Tensor]:
    """Return the bias-corrected moving means of ``g`` and of its square."""
    t = state["step"]
    m = moving_mean(state, "first", g, betas[0]) / (1 - betas[0] ** t)
    return m, moving_mean(state, "second", g.square(), betas[1]) / (1 - betas[1] ** t)


class MatrixOptimizer(Optimizer):
    """The contract of parts that train weight matrices, and leave other parameters to AdamW."""

    shard_blocker = "looks at whole matrices"
    others: Optimizer  # of the other parameters, `adamw`

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        matrices = [group.to_torch() for group in groups if group.is_matrix]
        others = [group for group in groups if not group.is_matrix]
        return CombinedOptimizer(
            *([self.matrix_optimizer(matrices)] if matrices else []),
            *([self.others.make(others)] if others else []),
        )

    @abstractmethod
    def matrix_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimizer of some PyTorch parameter groups of matrices."""


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers with disjoint parameters, as one; its groups are theirs, in order."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        super().__init__(self._groups(), {})

    def step(self, closure: Any = None) -> Any:
        """Make one step with each; the gradients must have been computed."""
        assert closure is None, "a closure is not supported"
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all, in order."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states that `state_dict` returned."""
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.param_groups = self._groups()  # `load_state_dict` replaces those of each optimizer

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]
