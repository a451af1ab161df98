"""Optimizers: from gradients to steps. PyTorch's own classes where there are any."""

from ablate.parts.optimizer.contract import Averaging, EstimatesCurvature, Group, Optimizer

__all__ = ["Averaging", "EstimatesCurvature", "Group", "Optimizer"]
