"""How far the mean of a few new seeds may lie from a reference, and what that catches.

A reference is n seeds with mean m and standard deviation s. If nothing has changed, the mean of k
new seeds less m, over s sqrt(1/n + 1/k), follows Student's t with n - 1 degrees of freedom
(Hahn 1969, "Factors for calculating two-sided prediction intervals"): whatever the true spread.
The limits below follow from that alone. The new seeds' own spread plays no part, so that a new
run that scatters cannot excuse itself, and the limits are known before it starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

GAIN_SHARE = 0.2
"""The share of false alarms that is spent on a mean that is too good; the rest is for losses."""

_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Promise:
    """What a statistical check is to keep.

    Attributes:
        false_alarm: share of gates in which it may fail although nothing has changed.
        loss: the smallest true loss that it must catch, in the units of the measure.
        power: share of gates in which it must catch it.
        n_new: new seeds in a gate.
    """

    false_alarm: float
    loss: float
    power: float
    n_new: int


@dataclass(frozen=True)
class Margins:
    """How far the mean of the new seeds may lie from that of the reference, in its units."""

    loss: float
    gain: float


def margins(spread: float, n: int, promise: Promise) -> Margins:
    """Return the margins of a reference of ``n`` seeds, 2 or more, with this standard deviation."""
    unit = spread * _widening(n, promise.n_new)
    alarm = promise.false_alarm
    return Margins(
        loss=unit * quantile(alarm * (1 - GAIN_SHARE), n - 1),
        gain=unit * quantile(alarm * GAIN_SHARE, n - 1),
    )


def power(spread: float, n: int, promise: Promise) -> float:
    """Return the share of gates in which a true loss of ``promise.loss`` is caught.

    Where this is at least ``promise.power``, and references that fall short are refused, a loss
    goes through in a share of at most 1 - ``promise.power`` of all repetitions of reference and
    gate, whatever the true spread.
    """
    unit = spread * _widening(n, promise.n_new)
    if unit == 0:
        return 1.0
    return tail((margins(spread, n, promise).loss - promise.loss) / unit, n - 1)


def largest_spread(n: int, promise: Promise) -> float:
    """Return the largest standard deviation with which ``n`` seeds can keep the promise."""
    alarm = promise.false_alarm * (1 - GAIN_SHARE)
    steps = quantile(alarm, n - 1) + quantile(1 - promise.power, n - 1)
    return promise.loss / (steps * _widening(n, promise.n_new))


def seeds_needed(spread: float, promise: Promise) -> int | None:
    """Return how many seeds a reference of this spread must have; None if no number is enough."""
    too_few, enough = 1, _MOST_SEEDS
    if spread > largest_spread(enough, promise):
        return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if spread > largest_spread(middle, promise):
            too_few = middle
        else:
            enough = middle
    return enough


@lru_cache
def quantile(above: float, df: int) -> float:
    """Return what Student's variable with ``df`` degrees exceeds with probability ``above``."""
    if above > 0.5:
        return -quantile(1 - above, df)
    low, high = 0.0, 1.0
    while tail(high, df) > above:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, df) > above else (low, middle)
    return (low + high) / 2


def tail(critical: float, df: int, shift: float = 0.0) -> float:
    """Return P(T > critical) for T = (Z + shift) / s, s^2 a chi-square over its ``df``."""
    nodes, weights = _nodes()
    longest = 1 + 9 / math.sqrt(df)  # s hardly ever lies beyond
    s = longest * ((nodes + 1) / 2) ** 2  # squared: where few degrees put much, near 0, are many
    log_density = (
        math.log(2)
        + df / 2 * math.log(df / 2)
        - math.lgamma(df / 2)
        + (df - 1) * np.log(s)
        - df * s**2 / 2
    )
    beyond = np.array([math.erfc((critical * x - shift) / math.sqrt(2)) / 2 for x in s])
    return float(np.sum(weights * np.exp(log_density) * beyond * (nodes + 1)) * longest / 2)


@lru_cache
def _nodes() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.polynomial.legendre.leggauss(200)


def _widening(n: int, n_new: int) -> float:
    return math.sqrt(1 / n + 1 / n_new)
