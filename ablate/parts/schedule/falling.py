"""Schedules that fall over the whole training, once or in cycles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from ablate.parts.dims import AtLeastTwo, Dims, Fraction
from ablate.parts.schedule.contract import Falling, Schedule
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


@register(
    "cosine_restarts",
    formula="as cosine, n_cycles times, each growth times as long as the one before",
    source="Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5 (SGDR)",
)
class CosineRestarts(Falling):
    """After the warm-up several half cosines from lr down to min_lr; the last ends with training.

    Args:
        n_cycles: how often the rate falls.
        growth: T_mult, the ratio of the lengths of successive cycles.
        min_lr: the lowest rate.

    Raises:
        ValueError: if min_lr is above lr, or the cycles grow beyond the largest number.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        n_cycles: AtLeastTwo = 3,
        growth: PositiveFloat = 2.0,
        min_lr: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(dims, n_steps, lr=lr, warmup=warmup, min_lr=min_lr)
        lengths = _lengths(growth, n_cycles)
        ends = [sum(lengths[: cycle + 1]) / sum(lengths) for cycle in range(n_cycles)]
        self.bounds = [0.0, *ends[:-1], 1.0]

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        progress = min(self.progress(step, self.warmup), 1.0)
        cycle = next(i for i, end in enumerate(self.bounds[1:]) if progress < end or end == 1.0)
        begin, end = self.bounds[cycle : cycle + 2]
        return self.half_cosine((progress - begin) / (end - begin))


@register(
    "one_cycle",
    formula="from start_factor lr up to lr at step warmup, then down to end_factor lr; each way "
    "half a cosine",
    source="Smith & Topin 2018, arXiv:1708.07120, sec. 3; torch.optim.lr_scheduler.OneCycleLR",
)
class OneCycle(Schedule):
    """One rise and one fall over the whole training, to a rate far below the initial one.

    The momentum, which the paper decreases while the rate rises, stays that of the optimizer.

    Args:
        lr: the highest rate.
        warmup: steps until the highest rate; about 45% of all steps in the paper, 30% in PyTorch.
        start_factor: the rate of the first step, as a share of lr; without effect if warmup is 0 or
            1, because there is no rise.
        end_factor: the rate of the last step, as a share of lr.
        form: of the rise and of every fall: half a ``cosine``, or ``linear``.
        n_phases: 2: a rise and a fall to the last step. 3, as in the paper: a rise, an equally long
            fall to the rate of the first step, and a fall from there to the last step. With 3,
            warmup must be at most half of all steps, or the last fall, and with it end_factor, is
            cut off.

    Raises:
        ValueError: if there are 3 phases and no step to rise in.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        n_steps: int,
        *,
        lr: PositiveFloat = 5e-4,
        warmup: NonNegativeInt = 4000,
        start_factor: Fraction = 0.04,
        end_factor: Fraction = 4e-6,
        form: Literal["cosine", "linear"] = "cosine",
        n_phases: Literal[2, 3] = 2,
    ) -> None:
        super().__init__(dims, n_steps)
        if n_phases == 3 and warmup < 2:
            raise ValueError(
                f"with 3 phases the rate falls for as long as it has risen, and a warmup of "
                f"{warmup} is no rise; give one of at least 2 steps, or n_phases: 2"
            )
        first, last = start_factor * lr, end_factor * lr
        self.knots = [(1, first), (warmup, lr), (n_steps, last)]
        if n_phases == 3:
            self.knots.insert(2, (2 * warmup - 1, first))
        self.form = form

    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        (begin, old), (end, new) = next(
            pair for pair in pairwise(self.knots) if step < pair[1][0] or pair[1] is self.knots[-1]
        )
        progress = (step - begin) / max(end - begin, 1)
        if self.form == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return old + (new - old) * progress


def _lengths(growth: float, n_cycles: int) -> list[float]:
    """Return the lengths of cycles, in units of the first."""
    try:
        lengths = [growth**cycle for cycle in range(n_cycles)]
    except OverflowError:
        lengths = [math.inf]
    if not math.isfinite(sum(lengths)):
        raise ValueError(
            f"{n_cycles} cycles, each {growth:g} times as long as the one before, are longer than "
            "any number; give a smaller growth, or fewer n_cycles"
        )
    return lengths
