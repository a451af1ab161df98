"""Optimizers: how gradients become steps. All of them are PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

from ablate.registry import Part, register

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Betas = tuple[Decay, Decay]


class Optimizer(Part, slot="optimizer"):
    """The contract: make a PyTorch optimizer; the schedule sets its learning rate."""

    def __init__(self) -> None:
        return

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of ``parameters``, with a learning rate of 0."""
        raise NotImplementedError


@register("adam", source="Kingma & Ba 2015, arXiv:1412.6980, alg. 1")
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

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters,
            lr=0.0,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


@register("adamw", source="Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2")
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

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters,
            lr=0.0,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )
