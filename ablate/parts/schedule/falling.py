"""Schedules that fall to their lowest rate at the last step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from ablate.parts.dims import Dims, Fraction
from ablate.parts.schedule.contract import Falling
from ablate.registry import AddedOption, register


@register(
    "cosine",
    formula="min_lr + (lr - min_lr) (1 + cos(pi share)) / 2, share of the steps after the warm-up",
    source="Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, one cycle",
)
class Cosine(Falling):
    """After the warm-up half a cosine down to min_lr at the last step."""

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        return self.half_cosine(self.progress(step, self.warmup))


@register(
    "linear",
    formula="lr + (min_lr - lr) share, share of the steps after the warm-up",
    source="Devlin et al. 2019, arXiv:1810.04805, app. A.2",
)
class Linear(Falling):
    """After the warm-up a straight line down to min_lr at the last step."""

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        return self.lr + (self.min_lr - self.lr) * self.progress(step, self.warmup)


@register(
    "wsd",
    formula="lr; in the last decay n_steps steps lr + (min_lr - lr) share, or another form, share "
    "of those steps",
    source="Hu et al. 2024, arXiv:2404.06395, sec. 4; Haegele et al. 2024, arXiv:2405.18392",
)
class WarmupStableDecay(Falling):
    """Constant after the warm-up, with a fall to min_lr at the end.

    The three phases are those of Hu et al., whose rate falls exponentially; a straight line to the
    last step is one of the forms of Haegele et al.

    Args:
        decay: share of all steps over which the rate falls, at most the steps after the warm-up; a
            tenth was enough for Hu et al.
        min_lr: the rate of the last step.
        form: how the rate falls with the share of those steps: ``linear``; ``sqrt``: with
            sqrt(share), the best form of Haegele et al.; ``exponential``: lr (min_lr / lr)^share,
            as in Hu et al., for which min_lr must be above 0.

    Raises:
        ValueError: if min_lr is above lr, or 0 where the rate falls exponentially.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        decay: Fraction = 0.1,
        min_lr: NonNegativeFloat = 0.0,
        form: Annotated[Literal["linear", "sqrt", "exponential"], AddedOption("linear")] = "linear",
    ) -> None:
        super().__init__(dims, n_steps, lr=lr, warmup=warmup, min_lr=min_lr)
        if form == "exponential" and not min_lr:
            raise ValueError(
                "a rate that falls exponentially never reaches a min_lr of 0; give a number "
                "above 0, such as a tenth of lr, or choose form: linear or sqrt"
            )
        self.begin = max(warmup, n_steps - max(1, round(decay * n_steps)))
        self.form = form

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        progress = self.progress(step, self.begin)
        if self.form == "exponential":
            return self.lr * (self.min_lr / self.lr) ** progress
        if self.form == "sqrt":
            progress = progress**0.5
        return self.lr + (self.min_lr - self.lr) * progress


@register(
    "polynomial",
    formula="min_lr + (lr - min_lr) (1 - share)^power, share of the steps after the warm-up",
    source="fairseq, polynomial_decay_schedule.py; torch.optim.lr_scheduler.PolynomialLR",
)
class Polynomial(Falling):
    """After the warm-up a power of the share of steps that remain, down to min_lr at the last step.

    Args:
        power: 1, the default of both sources, is `linear`; 2 unless given.
        min_lr: the rate of the last step.
    """

    def __init__(
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        power: PositiveFloat = 2.0,
        min_lr: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(dims, n_steps, lr=lr, warmup=warmup, min_lr=min_lr)
        self.power = power

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        rest = max(1 - self.progress(step, self.warmup), 0.0)
        return self.min_lr + (self.lr - self.min_lr) * rest**self.power
