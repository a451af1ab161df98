"""Schedules that do not depend on the length of the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from ablate.parts.dims import Dims, Fraction
from ablate.parts.schedule.contract import Falling, Schedule
from ablate.registry import AddedOption, register


@register(
    "noam",
    formula="factor d_model^-0.5 min(step^-0.5, step warmup^-1.5)",
    source="Vaswani et al. 2017, arXiv:1706.03762, eq. 3",
)
class Noam(Schedule):
    """Linear over the warm-up, then with the inverse square root of the step.

    Without a warm-up it is factor d_model^-0.5 step^-0.5.

    Args:
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

    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        rise = step * self.warmup**-1.5 if self.warmup else math.inf
        return self.factor * min(step**-0.5, rise)


@register(
    "inverse_sqrt",
    formula="lr sqrt(warmup / s) from s = warmup on, linear from init_lr before, s = step - delay",
    source="fairseq, inverse_square_root_schedule.py; Ott et al. 2018, arXiv:1806.00187, sec. 3",
)
class InverseSqrt(Schedule):
    """Linear from init_lr to lr over the warm-up, then lr sqrt(warmup / step).

    Args:
        lr: the highest rate.
        warmup: steps until the highest rate; without one the rate is lr / sqrt(step).
        init_lr: where the warm-up starts from, at step 0.
        delay: number of steps by which the rate is late. 1 is fairseq, which sets the rate after an
            update, from the number of updates: step s has the rate of s - 1, the first has init_lr.
    """

    def __init__(
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        init_lr: NonNegativeFloat = 0.0,
        delay: Annotated[NonNegativeInt, AddedOption(0)] = 0,
    ) -> None:
        super().__init__(dims, n_steps)
        self.lr = lr
        self.warmup = warmup
        self.init_lr = init_lr
        self.delay = delay

    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        n_updates = max(step - self.delay, 0)
        if n_updates < self.warmup:
            return self.init_lr + (self.lr - self.init_lr) * n_updates / self.warmup
        return self.lr * math.sqrt(max(self.warmup, 1) / max(n_updates, 1))


@register(
    "constant",
    formula="lr min(1, step / warmup)",
    source="Robbins & Monro 1951, the limit case of a fixed rate",
)
class Constant(Schedule):
    """Linear from 0 to lr over the warm-up, then lr.

    Args:
        lr: the rate.
        warmup: steps until it is reached.
    """

    def __init__(
        self, dims: Dims, n_steps: int, *, lr: PositiveFloat = 5e-4, warmup: NonNegativeInt = 0
    ) -> None:
        super().__init__(dims, n_steps)
        self.lr = lr
        self.warmup = warmup

    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        return self.lr * min(1.0, step / self.warmup if self.warmup else 1.0)


@register(
    "plateau",
    formula="lr <- max(factor lr, min_lr) when patience + 1 evaluations in a row were no new best",
    source="torch.optim.lr_scheduler.ReduceLROnPlateau; factor and patience from the code of "
    "Nguyen & Salazar 2019, arXiv:1910.05895",
)
class Plateau(Falling):
    """Constant after the warm-up, and multiplied by a factor when the dev NLL stops falling.

    Any lower dev NLL is a new best, and all evaluations count, those of the warm-up too.

    Args:
        factor: the rate is multiplied by it each time it falls.
        patience: number of evaluations in a row without a new best that do not change the rate;
            after one more it falls, and the count starts again. The code of Nguyen & Salazar
            instead looks at dev BLEU, and the rate falls whenever the last one is below each of the
            patience before it.
        min_lr: lower bound of the rate after the warm-up.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        factor: Fraction = 0.8,
        patience: NonNegativeInt = 3,
        min_lr: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(dims, n_steps, lr=lr, warmup=warmup, min_lr=min_lr)
        self.factor = factor
        self.patience = patience

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        rate, best, n_bad = self.lr, math.inf, 0
        for nll in dev:
            n_bad = 0 if nll < best else n_bad + 1
            best = min(best, nll)
            if n_bad > self.patience:
                rate, n_bad = max(self.factor * rate, self.min_lr), 0
        return rate
