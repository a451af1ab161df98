"""Optimizers that divide by the root of the gradient's second moment, or by the curvature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from ablate.parts.optimizer.contract import (
    Averaging,
    Betas,
    EstimatesCurvature,
    PerParameter,
    State,
    TorchOptimizer,
    moving_mean,
)
from ablate.registry import register

_PASSES = 4 / 3  # of an estimate: forward for the labels, forward and backward for the gradient


class AdamLike(TorchOptimizer):
    """Adam and its relatives, which share their options.

    The defaults are those of Vaswani et al. 2017, sec. 5.3.

    Args:
        betas: decay of the gradient's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: times the learning rate, the share of a weight that a step subtracts.
    """

    shard_blocker = ""
    extra: ClassVar[dict[str, Any]] = {"fused": True}

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.98),
        eps: PositiveFloat = 1e-9,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay, **self.extra)


@register(
    "adam",
    formula="w <- w - lr m / (sqrt(v) + eps); m, v: bias-corrected moving means of g and g^2",
    source="Kingma & Ba 2015, arXiv:1412.6980, alg. 1",
)
class Adam(AdamLike):
    """Adam; weight decay, if any, is added to the gradient (L2).

    Args:
        weight_decay: factor of the L2 penalty's gradient.
    """

    torch_class = torch.optim.Adam


@register(
    "adamw",
    formula="w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)",
    source="Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2",
)
class AdamW(AdamLike):
    """Adam with decoupled weight decay, on every parameter."""

    torch_class: ClassVar[Callable[..., torch.optim.Optimizer]] = torch.optim.AdamW

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.98),
        eps: PositiveFloat = 1e-9,
        weight_decay: NonNegativeFloat = 0.01,
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay)


@register(
    "radam",
    formula="as adamw with lr times a rectification that rises to 1; lr m while v is too uncertain",
    source="Liu et al. 2020, arXiv:1908.03265, alg. 2",
)
class RAdam(AdamLike):
    """Adam whose first steps are reduced while the variance of the second moment is large.

    As PyTorch has it: it rectifies once the length of the moving mean is above 5, where algorithm 2
    has 4 and the authors' code 5 or more, and it adds eps to the root of v before the correction of
    its bias. Weight decay is decoupled, as in the authors' code. The defaults are those of `adam`,
    so that rectification is the only difference.
    """

    torch_class = torch.optim.RAdam
    extra: ClassVar[dict[str, Any]] = {"decoupled_weight_decay": True, "foreach": True}


@register(
    "adafactor",
    formula="w <- w - min(lr, 1 / sqrt(t)) max(min_rms, rms(w)) u / max(1, rms(u) / clip), "
    "u = g / sqrt(v), v of a matrix = (row means) (column means) / mean",
    source="Shazeer & Stern 2018, arXiv:1804.04235, alg. 4 and 5, as in torch.optim.Adafactor",
)
class Adafactor(TorchOptimizer):
    """Second moments of a matrix from those of its rows and columns, and relative steps.

    The schedule's rate is the size of a step relative to that of the weights, with the upper bound
    1 / sqrt(t); the paper has 0.01 in its place. There is no momentum.

    Args:
        exponent: the second moment's decay at step t is 1 - t^-exponent.
        min_rms: lower bound of a parameter's root mean square in this ratio, so that zeros change.
        clip: largest root mean square of an update before it is scaled.
        weight_decay: times the learning rate, the share of a weight that a step subtracts.
    """

    torch_class = torch.optim.Adafactor
    shard_blocker = "looks at whole rows and columns"

    def __init__(
        self,
        *,
        exponent: PositiveFloat = 0.8,
        min_rms: PositiveFloat = 1e-3,
        clip: Annotated[float, Field(ge=1.0)] = 1.0,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        eps = (1e-15, min_rms)  # PyTorch squares the first: the paper's 1e-30
        super().__init__(
            beta2_decay=-exponent, eps=eps, d=clip, weight_decay=weight_decay, foreach=True
        )


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
