"""Boundaries for looks at a table while its seeds are still being added.

K rows are compared with one baseline after n_1 < ... < n_L seeds. At look l every interval is as
wide as one whose errors in a single table of K rows have the probability ``level`` l. The levels
are chosen such that, whatever is stopped at a look and for whatever reason, an interval of any row
at any look leaves out the true difference with a probability of 5%: they are repeated confidence
intervals (Jennison & Turnbull 1989, "Interim analyses: the repeated confidence interval approach").
Of the 5%, look l has spent the share n_l / n_L (the power family of Kim & DeMets 1987 with the
power 1, after Lan & DeMets 1983, "Discrete sequential boundaries for clinical trials"). As in
Magirr, Jaki & Whitehead 2012 ("A generalized Dunnett test for multi-arm multi-stage clinical
studies") the rows share their baseline, and the looks their seeds.

With known errors the sums of differences are random walks. Given the baseline's walk the rows'
are independent, so that

    P(no row has crossed its boundary by look l) = E[ G_l(baseline's walk)^K ],

where G_l is the probability that one row has not. The expectation is a mean over a lattice of
walks, and G_l an integral over the difference at every look in turn. What a level means where the
error is estimated is the matter of `ablate.analysis.dunnett`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import special

from ablate.analysis.dunnett import BALANCED, Floats, coverage, critical_value
from ablate.analysis.statistics import LEVEL

GIVE_UP = 0.05
"""A row whose chance to be decided by the last look is smaller gets no more seeds."""

_N_NODES = 32  # of an integral over the difference of a row and the baseline
_N_WALKS = 8191  # of the baseline; a prime
_GENERATOR = 1716  # of their lattice (Korobov's, whose points are powers of it)
_WITHIN = 1e-7


@lru_cache(maxsize=64)
def levels(looks: tuple[int, ...], n_rows: int) -> tuple[float, ...]:
    """Return the coverage of a table's intervals at each look, such that all of them hold to 95%.

    Args:
        looks: the seeds of each, ascending.
        n_rows: K, that are compared with the baseline.
    """
    increments = np.diff([0, *looks])
    row = _Row(n_rows)
    result: list[float] = []
    for n, increment, step in zip(looks, increments, _walks(len(looks)).T, strict=True):
        row.go_on(step, math.sqrt(increment))
        bound = _root(row, 1 - (1 - LEVEL) * n / looks[-1])
        row.stop_at(bound)
        critical = bound / math.sqrt(2 * n)
        result.append(coverage(critical, [BALANCED] * n_rows, math.inf))
    return tuple(result)


def chance(  # noqa: PLR0913 - what is known of a row, and of the looks
    estimate: float,
    error: float,
    looks: tuple[int, ...],
    n: int,
    n_rows: int,
    band: float,
    later: int | None = None,
) -> float:
    """Return how probably the last look decides a row, by its difference after ``n`` seeds.

    It is better, worse, or within the band; the true difference is as likely anywhere before its
    first seed (the predictive power of Spiegelhalter, Freedman & Blackburn 1986, "Monitoring
    clinical trials: conditional or predictive power?"). The error of a pair of runs is taken as
    known. What is not decided may be given up: repeated confidence intervals hold whenever seeds
    end.

    Args:
        estimate: of the difference.
        error: its standard error.
        looks: the seeds of each.
        n: of this one.
        n_rows: K.
        band: within which a whole interval means no difference.
        later: the seeds of another look than the last.
    """
    most = later or looks[-1]
    level = levels(looks, n_rows)[looks.index(most)]
    constant = critical_value([BALANCED] * n_rows, math.inf, level)
    half = constant * error * math.sqrt(n / most)
    spread = error * math.sqrt(1 - n / most)

    def below(end: float) -> float:
        return float(special.ndtr((end - estimate) / spread))

    within = max(0.0, below(band - half) - below(half - band)) if band > half else 0.0
    return min(1.0, below(-half) + 1 - below(half) + within)


def median_unbiased(
    estimate: float, error: float, looks: Sequence[int], constants: Sequence[float], band: float
) -> float:
    """Return a difference that the true one is above as often as below, of a row that has stopped.

    It is where an outcome at least as high has the probability 1/2: a boundary crossed at an
    earlier look, or a higher difference at this one (Kim 1989, "Point estimation following group
    sequential tests"; the ordering by stages). The error of a pair of runs is taken as known.

    Args:
        estimate: at the last of the looks, beyond its boundary.
        error: its standard error.
        looks: the seeds of each, up to that at which the row has stopped.
        constants: standard errors from 0 to the boundary, at each of these looks.
        band: within which a whole interval has stopped the row as well.
    """
    sign, pair = math.copysign(1.0, estimate), error * math.sqrt(looks[-1])
    bounds = [constant * math.sqrt(n) for constant, n in zip(constants, looks, strict=True)]
    bounds[-1] = abs(estimate) / pair * looks[-1]
    nodes, weights = np.polynomial.legendre.leggauss(_N_NODES)

    def as_high(true: float) -> float:
        at, density, total = np.zeros(1), np.ones(1), 0.0
        for n, bound, step in zip(looks, bounds, np.diff([0, *looks]), strict=True):
            mean = at + true / pair * step
            total += float(density @ special.ndtr((mean - bound) / math.sqrt(step)))
            inner = min(max(0.0, n * band / pair - bound), bound)
            half = (bound - inner) / 2
            upper = inner + half * (1 + nodes)
            at = np.concatenate([-upper, upper])
            away = (at[:, None] - mean) / math.sqrt(step)
            kernel = np.exp(-(away**2) / 2) / math.sqrt(2 * math.pi * step)
            density = kernel @ density * half * np.tile(weights, 2)
        return total

    low, high = abs(estimate) - 10 * error, abs(estimate) + 10 * error
    while high - low > _WITHIN * error:
        middle = (low + high) / 2
        low, high = (middle, high) if as_high(middle) < 1 / 2 else (low, middle)
    return sign * (low + high) / 2


class _Row:
    """The difference of a row and the baseline, for each of W walks of the baseline."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self._at: Floats = np.zeros((_N_WALKS, 1))  # where it may be, (W, D)
        self._density: Floats = np.ones((_N_WALKS, 1))  # of that, without having crossed; weighted
        self._mean: Floats  # where it goes from there, on average
        self._spread: float

    def go_on(self, step: Floats, spread: float) -> None:
        """Make a step of some spread, the baseline's being ``step`` (W,) times as large."""
        self._mean, self._spread = self._at - spread * step[:, None], spread

    def none_crosses(self, bound: float) -> float:
        """Return the probability that no row has crossed a boundary so far, or does now."""
        upper, lower = (special.ndtr((end - self._mean) / self._spread) for end in (bound, -bound))
        inside = (self._density * (upper - lower)).sum(axis=1)
        return float((inside**self._n_rows).mean())

    def stop_at(self, bound: float) -> None:
        """Leave out what lies beyond a boundary."""
        nodes, weights = np.polynomial.legendre.leggauss(_N_NODES)
        self._at = np.broadcast_to(bound * nodes, (_N_WALKS, _N_NODES))
        away = (self._at[:, None, :] - self._mean[:, :, None]) / self._spread  # (W, D, D')
        kernel = np.exp(-(away**2) / 2) / (self._spread * math.sqrt(2 * math.pi))
        density = np.einsum("wd,wde->we", self._density, kernel)
        self._density = density * bound * weights


def _walks(n_looks: int) -> Floats:
    """Return normal steps of many walks (W, L), spread evenly."""
    powers = np.array([pow(_GENERATOR, i, _N_WALKS) for i in range(n_looks)])
    lattice = (np.arange(_N_WALKS)[:, None] * powers % _N_WALKS + 0.5) / _N_WALKS
    folded = 1 - np.abs(2 * lattice - 1)  # the baker's transformation
    return np.asarray(special.ndtri(np.minimum(folded, 1 - 0.5 / _N_WALKS)))


def _root(row: _Row, wanted: float) -> float:
    """Return the boundary that no row crosses with a probability."""
    low, high = 0.0, 1.0
    while row.none_crosses(high) < wanted:
        low, high = high, 2 * high
    while high - low > _WITHIN * high:
        middle = (low + high) / 2
        low, high = (middle, high) if row.none_crosses(middle) < wanted else (low, middle)
    return (low + high) / 2
