"""A schedule of the learning rate to start from. Try it: ablate check my_schedule.py."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveFloat

from ablate.parts.dims import Dims
from ablate.parts.schedule import Schedule
from ablate.registry import register


# A rate must follow from its arguments alone: a run that was interrupted begins in the middle.
@register("my_schedule", formula="lr (1 - (step - 1) / n_steps)^power", source="you, 2026, sec. 1")
class MySchedule(Schedule):
    """A polynomial that would reach zero one step after the last.

    Args:
        lr: of the first step.
        power: 1 is a straight line.
    """

    def __init__(
        self, dims: Dims, n_steps: int, *, lr: PositiveFloat = 1e-3, power: PositiveFloat = 1.0
    ) -> None:
        super().__init__(dims, n_steps)
        self.lr = lr
        self.power = power

    def rate(self, step: int, dev: Sequence[float] = ()) -> float:
        return self.lr * (1 - (step - 1) / self.n_steps) ** self.power
