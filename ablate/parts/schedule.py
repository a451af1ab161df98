"""Schedules: how the learning rate changes. Steps count from 1; a warm-up of 0 is none."""

from __future__ import annotations

import math

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from ablate.parts.dims import Dims
from ablate.registry import Part, register


class Schedule(Part, slot="schedule"):
    """The contract: a pure function of the step.

    Args:
        dims: gives d_model.
        n_steps: length of the whole training.
    """

    def __init__(self, dims: Dims, n_steps: int) -> None:
        self.n_steps = n_steps

    def rate(self, step: int) -> float:
        """Return the learning rate of step 1, 2, ..., n_steps."""
        raise NotImplementedError


@register("noam", source="Vaswani et al. 2017, arXiv:1706.03762, eq. 3")
class Noam(Schedule):
    """factor d_model^-0.5 min(step^-0.5, step warmup^-1.5).

    Without a warm-up it is factor d_model^-0.5 step^-0.5.

    Args:
        dims: gives d_model.
        n_steps: length of the whole training.
        factor: 1 in the paper; 2 in later tensor2tensor.
        warmup: steps until the highest rate.
    """

    def __init__(
        self,
        dims: Dims,
        n_steps: int,
        *,
        factor: PositiveFloat = 1.0,
        warmup: NonNegativeInt = 4000,
    ) -> None:
        super().__init__(dims, n_steps)
        self.factor = factor * dims.d_model**-0.5
        self.warmup = warmup

    def rate(self, step: int) -> float:
        rise = step * self.warmup**-1.5 if self.warmup else math.inf
        return self.factor * min(step**-0.5, rise)


@register("inverse_sqrt", source="fairseq, inverse_square_root_schedule.py; Ott et al. 2018")
class InverseSqrt(Schedule):
    """Linear from init_lr to lr over the warm-up, then lr sqrt(warmup / step).

    Args:
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate; without one the rate is lr / sqrt(step).
        init_lr: where the warm-up starts from, at step 0.
    """

    def __init__(
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        init_lr: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(dims, n_steps)
        self.lr = lr
        self.warmup = warmup
        self.init_lr = init_lr

    def rate(self, step: int) -> float:
        if step < self.warmup:
            return self.init_lr + (self.lr - self.init_lr) * step / self.warmup
        return self.lr * math.sqrt(max(self.warmup, 1) / step)


@register("cosine", source="Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, one cycle")
class Cosine(Schedule):
    """Linear from 0 to lr over the warm-up, then half a cosine down to min_lr at the last step.

    Args:
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate.
        min_lr: the rate of the last step.
    """

    def __init__(
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        min_lr: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(dims, n_steps)
        self.lr = lr
        self.warmup = warmup
        self.min_lr = min_lr

    def rate(self, step: int) -> float:
        if step < self.warmup:
            return self.lr * step / self.warmup
        done = min((step - self.warmup) / max(self.n_steps - self.warmup, 1), 1.0)
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * done)) / 2


@register("constant", source="Robbins & Monro 1951, the limit case of a fixed rate")
class Constant(Schedule):
    """Linear from 0 to lr over the warm-up, then lr.

    Args:
        dims: not used.
        n_steps: length of the whole training.
        lr: the rate.
        warmup: steps until it is reached.
    """

    def __init__(
        self, dims: Dims, n_steps: int, *, lr: PositiveFloat = 5e-4, warmup: NonNegativeInt = 0
    ) -> None:
        super().__init__(dims, n_steps)
        self.lr = lr
        self.warmup = warmup

    def rate(self, step: int) -> float:
        return self.lr * min(1.0, step / self.warmup if self.warmup else 1.0)
