"""The contract of schedules. Steps count from 1; a warm-up of 0 is none."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from ablate.parts.dims import Dims
from ablate.registry import Part


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


class Falling(Schedule):
    """Linear from 0 to lr over the warm-up, then down to min_lr, as the parts below define.

    Args:
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

    def half_cosine(self, progress: float) -> float:
        """Return the rate on half a cosine from lr, at ``progress`` 0, to min_lr, at 1."""
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * progress)) / 2

    def progress(self, step: int, begin: int) -> float:
        """Return how far ``step`` is on the way from ``begin``, 0, to the last step, 1."""
        return max((step - begin) / max(self.n_steps - begin, 1), 0.0)
