"""How far the mean of a few runs may lie from a reference, and which losses that detects.

A reference is n seeds with mean m and standard deviation s. If nothing has changed, the mean of k
new seeds less m, over s sqrt(1/n + 1/k), follows Student's t with n - 1 degrees of freedom
(Hahn 1969, "Factors for calculating two-sided prediction intervals"), whatever the true standard
deviation. The limits follow from that alone. The standard deviation of the new seeds plays no part:
new runs with a large spread do not widen the tolerance, and the limits are known before they start.

Where the same k seeds are run again, their mean difference has the standard deviation s sqrt(1/k),
with s the root mean square of n differences between runs of the same seed, on n degrees of freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from ablate.analysis.statistics import t_quantile

GAIN_SHARE = 0.2  # of alpha is spent on a mean that is too good; the rest is for losses
CONFIDENCE = 0.95  # with which the true standard deviation is not below `lowest_std`
_MOST_SEEDS = 40


@dataclass(frozen=True)
class Promise:
    """The error rates that a check of new, independent seeds promises."""

    alpha: float  # the share of gates in which it may fail although nothing has changed
    min_effect: float  # the smallest true loss that it must detect
    power: float  # the share of gates in which it must detect that loss
    n_new: int  # runs in a gate

    def df(self, n: int) -> int:
        """Return the degrees of freedom of a standard deviation from ``n`` seeds."""
        return n - 1

    def standard_error(self, n: int) -> float:
        """Return the standard error of the difference of the means, for a std of 1."""
        return math.sqrt(1 / n + 1 / self.n_new)

    def standard_error_formula(self, n: int) -> str:
        return f"sqrt(1/{n} + 1/{self.n_new})"

    @property
    def runs(self) -> str:
        return f"{self.n_new} new seeds"


class PairedPromise(Promise):
    """The promise of a check of the same seeds; the std is that of differences, around 0."""

    def df(self, n: int) -> int:
        return n

    def standard_error(self, n: int) -> float:
        return math.sqrt(1 / self.n_new)

    def standard_error_formula(self, n: int) -> str:
        return f"sqrt(1/{self.n_new})"

    @property
    def runs(self) -> str:
        return f"the same {self.n_new} seeds"


@dataclass(frozen=True)
class ReferenceSample:
    """A measure in a reference of ``n`` seeds; the std is of one run, or of one difference."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Margins:
    """How far the new mean may lie from the reference, in its units."""

    loss: float
    gain: float


def margins(std: float, n: int, promise: Promise) -> Margins:
    """Return the margins of a reference of ``n`` seeds, 2 or more, with this standard deviation."""
    unit, df = std * promise.standard_error(n), promise.df(n)
    return Margins(
        loss=unit * t_quantile(promise.alpha * (1 - GAIN_SHARE), df),
        gain=unit * t_quantile(promise.alpha * GAIN_SHARE, df),
    )


def power(std: float, n: int, promise: Promise) -> float:
    """Return the share of gates in which a true loss of ``promise.min_effect`` is caught.

    Where references that fall short of ``promise.power`` are refused, a loss goes through in at
    most 1 - ``promise.power`` of all repetitions of reference and gate, whatever the true std.
    """
    unit = std * promise.standard_error(n)
    if unit == 0:
        return 1.0
    missed = (margins(std, n, promise).loss - promise.min_effect) / unit
    return tail(missed, promise.df(n))


def largest_std(n: int, promise: Promise) -> float:
    """Return the largest standard deviation with which ``n`` seeds can keep the promise."""
    return promise.min_effect / smallest_effect(1.0, n, promise)


def smallest_effect(std: float, n: int, promise: Promise) -> float:
    """Return the smallest loss that ``n`` seeds of this standard deviation can promise to catch."""
    df = promise.df(n)
    steps = t_quantile(promise.alpha * (1 - GAIN_SHARE), df) + t_quantile(1 - promise.power, df)
    return std * steps * promise.standard_error(n)


def seeds_needed(std: float, promise: Promise) -> int | None:
    """Return how many seeds a reference of this std must have; None if 40 are not enough."""
    enough = (n for n in range(2, _MOST_SEEDS + 1) if std <= largest_std(n, promise))
    return next(enough, None)


def rounded_up(value: float) -> float:
    """Return a positive number with two digits that is not below ``value``."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step * (1 - 1e-12)) * step:.2g}")


def lowest_std(std: float, df: int) -> float:
    """Return the one-sided 95% lower confidence limit of the true standard deviation."""
    return std * math.sqrt(df / float(special.chdtri(df, 1 - CONFIDENCE)))


def tail(critical: float, df: int, shift: float = 0.0) -> float:
    """Return P(T > critical) for T = (Z + shift) / s, s^2 a chi-square over its ``df``."""
    if shift == 0:
        return float(special.stdtr(df, -critical))
    return float(special.nctdtr(df, -shift, -critical))
