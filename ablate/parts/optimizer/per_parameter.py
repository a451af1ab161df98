"""Optimizers that treat every parameter by itself, and the moments that they keep."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ablate.parts.optimizer.contract import Betas

State = dict[str, Any]


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
        """Change a parameter in place.

        Args:
            w: the parameter.
            g: its gradient.
            state: of the parameter, kept from step to step; ``step`` is the number of this one.
            group: the settings.
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
