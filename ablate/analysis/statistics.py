"""One quantity over seeds: its mean, its spread, and its paired differences from another."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from scipy import special  # scipy.stats takes a second to import

from ablate.measuring import perplexity

LEVEL = 0.95  # the probability with which an interval holds, or all intervals of a table together


@dataclass(frozen=True)
class Interval:
    """A confidence interval, at `LEVEL` unless something else is said."""

    low: float
    high: float

    @classmethod
    def around(cls, estimate: float, half: float) -> Interval:
        return cls(estimate - half, estimate + half)

    @classmethod
    def of_mean(cls, mean: float, sd: float, n: int, above: float = (1 - LEVEL) / 2) -> Interval:
        """Return Student's interval; the true mean is ``above`` it, or below, so rarely each."""
        return cls.around(mean, t_quantile(above, n - 1) * sd / math.sqrt(n))


@dataclass(frozen=True)
class Estimate:
    """One quantity over the seeds that have it, of which there is one at least."""

    values: Mapping[int, float]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return mean_of(self.values.values())

    @property
    def sd(self) -> float | None:
        """The sample standard deviation (n - 1); None for one seed or a value without bound."""
        mean = mean_of(self.values.values())
        if self.n < 2 or not math.isfinite(mean):
            return None
        deviations = [value - mean for value in self.values.values()]
        try:
            return math.sqrt(math.fsum(each**2 for each in deviations) / (self.n - 1))
        except OverflowError:  # the square of a perplexity above 1e154 is no float
            return math.hypot(*deviations) / math.sqrt(self.n - 1)


@dataclass(frozen=True)
class Perplexity(Estimate):
    """A perplexity over seeds; its standard deviation is that of the seeds' perplexities."""

    mean_nll: float

    @classmethod
    def of(cls, nll: Estimate) -> Perplexity:
        return cls({seed: perplexity(value) for seed, value in nll.values.items()}, nll.mean)

    @property
    def mean(self) -> float:
        """Exp of the mean NLL, so that it goes with the differences of the NLL."""
        return perplexity(self.mean_nll)


def mean_of(values: Collection[float]) -> float:
    """Return the arithmetic mean; infinite or NaN if a value is."""
    total = sum(values)
    return math.fsum(values) / len(values) if math.isfinite(total) else total


@lru_cache(maxsize=4096)
def t_quantile(above: float, df: float) -> float:
    """Return the value that Student's t with ``df`` degrees exceeds with probability ``above``."""
    return -float(special.stdtrit(df, above))


def paired_differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return ``ours - theirs`` by seed, over the seeds that both have, in ascending order."""
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
