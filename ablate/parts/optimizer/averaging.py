"""Optimizers that average the weights, instead of a schedule that falls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from ablate.parts.optimizer.contract import Averaging, Betas, TorchOptimizer
from ablate.parts.optimizer.per_parameter import PerParameter, State, moving_mean
from ablate.registry import register


class ScheduleFreeAdamWOptimizer(PerParameter, Averaging):
    """The optimizer of `schedule_free_adamw`: a parameter is y, and its state holds z."""

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        (b1, b2), lr = group["betas"], group["lr"]
        z = state["z"] if "z" in state else state.setdefault("z", w.clone())
        v = moving_mean(state, "second", g.square(), b2) / (1 - b2 ** state["step"])
        u = g / (v.sqrt() + group["eps"]) + group["weight_decay"] * w
        state["largest"] = max(state.get("largest", 0.0), lr)
        weight = state["largest"] ** 2
        state["total"] = state.get("total", 0.0) + weight
        share = weight / state["total"] if weight else 0.0
        w.lerp_(z, share).sub_(lr * (1 - b1 * (1 - share)) * u)
        z.sub_(lr * u)

    def averages(self) -> Iterator[tuple[Tensor, Tensor]]:
        for group in self.param_groups:
            for w in group["params"]:
                if w in self.state:
                    yield w, torch.lerp(w, self.state[w]["z"], 1 - 1 / group["betas"][0])


@register(
    "schedule_free_adamw",
    formula="z <- z - lr (g / (sqrt(v) + eps) + weight_decay y), x <- (1 - c) x + c z, g at "
    "y = (1 - b1) z + b1 x, c = max lr^2 / sum of max lr^2; x is evaluated",
    source="Defazio et al. 2024, arXiv:2405.15682, alg. 1, and their code (schedulefree 1.4)",
)
class ScheduleFreeAdamW(TorchOptimizer):
    """AdamW with an average of the weights x, so that the learning rate need not fall.

    Meant for the schedule `constant`, with a warm-up: each step enters the average with the square
    of the highest rate so far, so that steps of the warm-up count less. Gradients are computed at
    y, between the average and the weights z that the steps change. The average is evaluated on the
    dev set, kept in snapshots, averaged by ``training.average`` and stored at the end.

    Args:
        betas: b1, the share of the average in y, which must be above 0; and the decay of the
            gradient's second moment.
        eps: added to the root of the second moment.
        weight_decay: times the learning rate, the share of y that a step subtracts from z.

    Raises:
        ValueError: if the first of betas is 0.
    """

    torch_class = ScheduleFreeAdamWOptimizer
    shard_blocker = ""

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.999),
        eps: PositiveFloat = 1e-8,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        if not betas[0]:
            raise ValueError(
                "if the first of betas is 0, gradients do not depend on the average, and it cannot "
                "be computed; give a number above 0, such as 0.9"
            )
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay)
