"""Optimizers that divide by the root of the gradient's second moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat

from ablate.parts.optimizer.contract import Betas, TorchOptimizer
from ablate.registry import register


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
