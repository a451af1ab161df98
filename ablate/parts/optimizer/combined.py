"""Optimizers of weight matrices, beside AdamW for all other parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from ablate.parts.optimizer.adaptive import AdamW
from ablate.parts.optimizer.contract import Group, Optimizer


class MatrixOptimizer(Optimizer):
    """The contract of parts that train weight matrices, and leave other parameters to AdamW."""

    shard_blocker = "looks at whole matrices"
    others: AdamW

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
