"""Schedules: how the learning rate changes. Steps count from 1; a warm-up of 0 is none."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from ablate.parts.dims import AtLeastTwo, Dims, Fraction
from ablate.registry import AddedOption, Part, register


class Schedule(Part, slot="schedule"):
    """The contract: a pure function of the step and of the losses on the dev set so far.

    Args:
        dims: gives d_model.
        n_steps: length of the whole training.
    """

    def __init__(self, dims: Dims, n_steps: int) -> None:
        self.n_steps = n_steps

    @abstractmethod
    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        """Return the learning rate.

        Args:
            step: 1, 2, ..., n_steps.
            dev: the dev NLLs of all evaluations before that step, in order.
        """


@register(
    "noam",
    formula="factor d_model^-0.5 min(step^-0.5, step warmup^-1.5)",
    source="Vaswani et al. 2017, arXiv:1706.03762, eq. 3",
)
class Noam(Schedule):
    """Linear over the warm-up, then with the inverse square root of the step.

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
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate; without one the rate is lr / sqrt(step).
        init_lr: where the warm-up starts from, at step 0.
        delay: steps that the rate lags behind. fairseq sets it after each update, from the number
            of updates made, and so its step s has the rate of s - 1, and its first has init_lr: 1.
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
        made = max(step - self.delay, 0)
        if made < self.warmup:
            return self.init_lr + (self.lr - self.init_lr) * made / self.warmup
        return self.lr * math.sqrt(max(self.warmup, 1) / max(made, 1))


@register(
    "constant",
    formula="lr min(1, step / warmup)",
    source="Robbins & Monro 1951, the limit case of a fixed rate",
)
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

    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        return self.lr * min(1.0, step / self.warmup if self.warmup else 1.0)


class Falling(Schedule):
    """Linear from 0 to lr over the warm-up, then down to min_lr, as the parts below define.

    Args:
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate.
        min_lr: the lowest rate after the warm-up.

    Raises:
        ValueError: if min_lr is above lr.
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
        if min_lr > lr:
            raise ValueError(
                f"min_lr ({min_lr}) is above lr ({lr}), from which the rate is to fall; "
                "give a smaller min_lr, or a larger lr"
            )
        self.lr = lr
        self.warmup = warmup
        self.min_lr = min_lr

    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        if step < self.warmup:
            return self.lr * step / self.warmup
        return self.rate_after_warmup(step, dev)

    @abstractmethod
    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        """Return the learning rate of a step after the warm-up; the arguments are as in `rate`."""

    def share(self, step: int, begin: int) -> float:
        """Return the share of the steps from ``begin`` to the last one that is over, 0 to 1."""
        return max((step - begin) / max(self.n_steps - begin, 1), 0.0)


@register(
    "cosine",
    formula="min_lr + (lr - min_lr) (1 + cos(pi share)) / 2, share of the steps after the warm-up",
    source="Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, one cycle",
)
class Cosine(Falling):
    """After the warm-up half a cosine down to min_lr at the last step."""

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        done = self.share(step, self.warmup)
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * done)) / 2


@register(
    "linear",
    formula="lr + (min_lr - lr) share, share of the steps after the warm-up",
    source="Devlin et al. 2019, arXiv:1810.04805, app. A.2",
)
class Linear(Falling):
    """After the warm-up a straight line down to min_lr at the last step."""

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        return self.lr + (self.min_lr - self.lr) * self.share(step, self.warmup)


@register(
    "wsd",
    formula="lr; in the last decay n_steps steps lr + (min_lr - lr) share, or another form, share "
    "of those steps",
    source="Hu et al. 2024, arXiv:2404.06395, sec. 4; Haegele et al. 2024, arXiv:2405.18392",
)
class WarmupStableDecay(Falling):
    """After the warm-up constant, and at the end a straight line down to min_lr.

    The three phases are those of Hu et al., who let the rate fall exponentially; a straight line
    to the last step is one of the forms of Haegele et al.

    Args:
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate.
        decay: share of all steps over which the rate falls, or as many as the warm-up leaves; a
            tenth was enough for Hu et al.
        min_lr: the rate of the last step.
        form: how the rate falls, with the share of those steps: ``linear``; ``sqrt``: by
            sqrt(share), the best form of Haegele et al.; ``exponential``: to lr (min_lr /
            lr)^share, as in Hu et al., for which min_lr must be above 0.

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
                "a rate that falls exponentially never comes to a min_lr of 0; give it a number "
                "above 0, such as a tenth of lr, or choose form: linear or sqrt"
            )
        self.begin = max(warmup, n_steps - max(1, round(decay * n_steps)))
        self.form = form

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        done = self.share(step, self.begin)
        if self.form == "exponential":
            return self.lr * (self.min_lr / self.lr) ** done
        fallen = done**0.5 if self.form == "sqrt" else done
        return self.lr + (self.min_lr - self.lr) * fallen


@register(
    "polynomial",
    formula="min_lr + (lr - min_lr) (1 - share)^power, share of the steps after the warm-up",
    source="fairseq, polynomial_decay_schedule.py; torch.optim.lr_scheduler.PolynomialLR",
)
class Polynomial(Falling):
    """After the warm-up a power of the share that is left, down to min_lr at the last step.

    Args:
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate.
        power: 1 is `linear`.
        min_lr: the rate of the last step.

    Raises:
        ValueError: if min_lr is above lr.
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
        left = max(1 - self.share(step, self.warmup), 0.0)
        return self.min_lr + (self.lr - self.min_lr) * left**self.power


@register(
    "cosine_restarts",
    formula="as cosine, n_cycles times, each growth times as long as the one before",
    source="Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5 (SGDR)",
)
class CosineRestarts(Falling):
    """After the warm-up several cosines from lr down to min_lr, the last one ends with training.

    Args:
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate.
        n_cycles: how often the rate falls.
        growth: T_mult, the ratio of the lengths of successive cycles.
        min_lr: the lowest rate.

    Raises:
        ValueError: if min_lr is above lr.
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
        lengths = [growth**cycle for cycle in range(n_cycles)]
        ends = [sum(lengths[: cycle + 1]) / sum(lengths) for cycle in range(n_cycles)]
        self.bounds = [0.0, *ends[:-1], 1.0]

    def rate_after_warmup(self, step: int, dev: Sequence[float]) -> float:
        done = min(self.share(step, self.warmup), 1.0)
        cycle = next(i for i, end in enumerate(self.bounds[1:]) if done < end or end == 1.0)
        begin, end = self.bounds[cycle : cycle + 2]
        of_cycle = (done - begin) / (end - begin)
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * of_cycle)) / 2


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
        dims: not used.
        n_steps: length of the whole training.
        lr: the highest rate.
        warmup: steps until the highest rate.
        factor: of the rate, each time it falls.
        patience: the number of evaluations in a row without a new best that leave the rate as it
            is; after one more it falls, and the count starts again.
        min_lr: lower bound of the rate after the warm-up.

    Raises:
        ValueError: if min_lr is above lr.
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
        rate, best, without_gain = self.lr, math.inf, 0
        for nll in dev:
            without_gain = 0 if nll < best else without_gain + 1
            best = min(best, nll)
            if without_gain > self.patience:
                rate, without_gain = max(self.factor * rate, self.min_lr), 0
        return rate
