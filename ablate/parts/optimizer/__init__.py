"""Optimizers: how gradients become steps. PyTorch's own wherever it has them."""

from ablate.parts.optimizer.contract import Group, Optimizer

__all__ = ["Group", "Optimizer"]
