"""Optimizers that divide by a second moment of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat

from ablate.parts.optimizer.contract import Betas, Group, Optimizer
from ablate.registry import register


@register(
    "adam",
    formula="w <- w - lr m / (sqrt(v) + eps); m, v: bias-corrected moving means of g and g^2",
    source="Kingma & Ba 2015, arXiv:1412.6980, alg. 1",
)
class Adam(Optimizer):
    """Adam; weight decay, if any, is added to the gradient (L2).

    The defaults are those of Vaswani et al. 2017, sec. 5.3.

    Args:
        betas: decay of the gradient's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: factor of the L2 penalty's gradient.
    """

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.98),
        eps: PositiveFloat = 1e-9,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            [group.plain() for group in groups],
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


@register(
    "adamw",
    formula="w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)",
    source="Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2",
)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, on every parameter.

    Args:
        betas: decay of the gradient's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: share of a weight, times the learning rate, that a step takes away.
    """

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.98),
        eps: PositiveFloat = 1e-9,
        weight_decay: NonNegativeFloat = 0.01,
    ) -> None:
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [group.plain() for group in groups],
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


@register(
    "radam",
    formula="as adamw with lr times a rectification that rises to 1; lr m while v is too uncertain",
    source="Liu et al. 2020, arXiv:1908.03265, alg. 2",
)
class RAdam(Optimizer):
    """Adam whose first steps are damped by how uncertain the second moment still is.

    Weight decay is decoupled, as in the authors' code. The other defaults are those of `adam`, so
    that rectification is what differs.

    Args:
        betas: decay of the gradient's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: share of a weight, times the learning rate, that a step takes away.
    """

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.98),
        eps: PositiveFloat = 1e-9,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return torch.optim.RAdam(
            [group.plain() for group in groups],
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled_weight_decay=True,
            foreach=True,
        )


@register(
    "adafactor",
    formula="w <- w - min(lr, 1 / sqrt(t)) max(min_rms, rms(w)) u / max(1, rms(u) / clip), "
    "u = g / sqrt(v), v of a matrix = (row means) (column means) / mean",
    source="Shazeer & Stern 2018, arXiv:1804.04235, alg. 4 and 5, as in torch.optim.Adafactor",
)
class Adafactor(Optimizer):
    """Second moments of a matrix from those of its rows and columns, and relative steps.

    The schedule's rate means something else here: it is how far a step goes in proportion to the
    size of the weights, and 1 / sqrt(t) bounds it; the paper has 0.01 in its place. There is no
    momentum.

    Args:
        exponent: the second moment's decay at step t is 1 - t^-exponent.
        min_rms: the least size that a parameter is taken to have, so that zeros can move.
        clip: largest root mean square of an update before it is scaled.
        weight_decay: share of a weight, times the learning rate, that a step takes away.
    """

    def __init__(
        self,
        *,
        exponent: PositiveFloat = 0.8,
        min_rms: PositiveFloat = 1e-3,
        clip: Annotated[float, Field(ge=1.0)] = 1.0,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        self.exponent = exponent
        self.min_rms = min_rms
        self.clip = clip
        self.weight_decay = weight_decay

    def make(self, groups: Sequence[Group]) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(
            [group.plain() for group in groups],
            beta2_decay=-self.exponent,
            eps=(1e-15, self.min_rms),  # PyTorch squares the first: the paper's 1e-30
            d=self.clip,
            weight_decay=self.weight_decay,
            foreach=True,
        )
