"""Optimizers that divide by the curvature of the loss, estimated every few steps."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from ablate.parts.optimizer.contract import Betas, EstimatesCurvature, TorchOptimizer
from ablate.parts.optimizer.per_parameter import PerParameter, State, moving_mean
from ablate.registry import register

_PASSES = 4 / 3  # of an estimate: forward for the labels, forward and backward for the gradient


class SophiaOptimizer(PerParameter, EstimatesCurvature):
    """The optimizer of `sophia`."""

    @property
    def every(self) -> int:
        return int(self.param_groups[0]["every"])

    @torch.no_grad()
    def add_curvature(self, n_tokens: int) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    estimate = n_tokens * w.grad.square()
                    moving_mean(self.state[w], "curvature", estimate, group["betas"][1])

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        m = moving_mean(state, "first", g, group["betas"][0])
        w.mul_(1 - group["lr"] * group["weight_decay"])
        curvature = state["curvature"] if "curvature" in state else torch.zeros_like(m)
        u = m / (group["gamma"] * curvature).clamp(min=group["eps"])
        w.sub_(group["lr"] * u.clamp(-1.0, 1.0))


@register(
    "sophia",
    formula="w <- w - lr (clip(m / max(gamma h, eps), 1) + weight_decay w); m: mean of g, h: mean "
    "of n g'^2, g' the gradient for n labels drawn from the model",
    source="Liu et al. 2023, arXiv:2305.14342, alg. 2 and 3 (Sophia-G)",
)
class Sophia(TorchOptimizer):
    """Momentum divided by the diagonal of the Gauss-Newton matrix, and clipped to lr.

    The diagonal is estimated every few steps (Gauss-Newton-Bartlett): labels are drawn from the
    model's predictions for the first batch of a step, or for its first part where it is divided for
    lack of memory, and the gradient of their cross-entropy is squared. Every engine does this
    eagerly, without dropout and without auxiliary losses. The estimate is per token whatever
    training.loss_per is: with sentence, gamma must be larger by the tokens of a sentence. The FLOPs
    of a step include the mean cost of the estimates.

    Args:
        betas: decay of the mean of the gradient, and of the mean of the estimates.
        gamma: factor of the divisor; the larger, the more weights change by less than lr; 0.05 in
            the paper, which tunes it so that 10% to 50% do.
        eps: the smallest divisor.
        every: steps from one estimate to the next; 10 in the paper.
        weight_decay: times the learning rate, the share of a weight that a step subtracts; 0.2 in
            the paper.
    """

    torch_class = SophiaOptimizer
    shard_blocker = "estimates the curvature with whole weights"

    def __init__(
        self,
        *,
        betas: Betas = (0.96, 0.99),
        gamma: PositiveFloat = 0.05,
        eps: PositiveFloat = 1e-12,
        every: PositiveInt = 10,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        self.extra_passes = _PASSES / every
        super().__init__(betas=betas, gamma=gamma, eps=eps, every=every, weight_decay=weight_decay)
