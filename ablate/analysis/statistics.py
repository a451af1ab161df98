"""One quantity over seeds: its mean, its spread, and its paired differences from another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LEVEL = 0.95
"""The probability with which an interval holds, or all intervals of a table together."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval at `LEVEL`."""

    low: float
    high: float

    @classmethod
    def around(cls, estimate: float, half: float) -> Interval:
        """Return estimate ± half."""
        return cls(estimate - half, estimate + half)


@dataclass(frozen=True)
class Estimate:
    """One quantity over the seeds that have it.

    Attributes:
        values: by seed, never empty.
    """

    values: Mapping[int, float]

    @property
    def n(self) -> int:
        """How many seeds."""
        return len(self.values)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Which seeds, in ascending order."""
        return tuple(sorted(self.values))

    @property
    def mean(self) -> float:
        """The arithmetic mean; infinite or NaN if a value is."""
        total = sum(self.values.values())
        return math.fsum(self.values.values()) / self.n if math.isfinite(total) else total

    @property
    def sd(self) -> float | None:
        """The sample standard deviation (n - 1); None for one seed or a value without bound."""
        mean = self.mean
        if self.n < 2 or not math.isfinite(mean):
            return None
        deviations = [value - mean for value in self.values.values()]
        try:
            return math.sqrt(math.fsum(each**2 for each in deviations) / (self.n - 1))
        except OverflowError:  # the square of a perplexity above 1e154 is no float
            return math.hypot(*deviations) / math.sqrt(self.n - 1)


def paired_differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return ``ours - theirs`` by seed, over the seeds that both have, in ascending order."""
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
