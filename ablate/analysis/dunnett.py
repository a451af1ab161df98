"""Dunnett's simultaneous comparisons of many rows with one baseline, two-sided.

The statistics T_i = (estimated difference - true one) / (its standard error) share the baseline and
the estimated error: together they follow a multivariate Student distribution. Dunnett 1955, "A
multiple comparison procedure for comparing several treatments with a control"; Dunnett 1964, "New
tables for multiple comparisons with a control".

Where the correlation of T_i and T_j is a product b_i b_j, as it is in every one-way table and in
every two-way table without missing cells (b = sqrt(1/2)), the probability that no |T_i| exceeds c
is a double integral,

    P(c) = ∫ f(s) ∫ φ(z) Π_i [Φ((c s - b_i z) / r_i) - Φ((-c s - b_i z) / r_i)] dz ds,

with r_i = sqrt(1 - b_i²) and s² a chi-square over its degrees of freedom. It is done by quadrature.

K comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats and scipy.optimize take a second to import

from ablate.analysis.statistics import LEVEL, t_quantile

Floats = NDArray[np.float64]

BALANCED = math.sqrt(0.5)  # b of a row with as many seeds as the baseline
POWER = 0.8  # the probability with which `smallest_detectable` is found

_N_NODES, _MOST_NODES = 64, 1024
_FURTHEST = 8.5  # standard deviations: beyond lies less than 1e-16
_UNLIKELY = 1e-15  # what lies beyond the nodes of s, on either side
_ROOT_WITHIN = 1e-10
_NEARLY_1 = 1 - 1e-5  # of a correlation that is 1 the integrand is a step


def critical_value(loadings: Sequence[float], df: float, level: float = LEVEL) -> float:
    """Return c such that all K intervals, estimate ± c standard errors, hold together."""
    return _critical(tuple(sorted(round(float(b), 9) for b in loadings)), float(df), level)


def coverage(critical: float, loadings: Sequence[float], df: float) -> float:
    """Return the probability that none of the |T_i| exceeds ``critical``."""
    values, counts = np.unique(np.round(loadings, 9), return_counts=True)
    s, of_s = _error_nodes(df)
    values = np.minimum(values, _NEARLY_1)
    nodes, weights = _nodes(_n_nodes(values.max()))
    z = _FURTHEST * nodes
    of_z = _FURTHEST * weights * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    inside = np.ones((len(s), len(z)))
    for b, n in zip(values, counts, strict=True):
        rest = math.sqrt(1 - b * b)
        upper = special.ndtr((critical * s[:, None] - b * z) / rest)
        inside *= (upper - special.ndtr((-critical * s[:, None] - b * z) / rest)) ** n
    return float(of_s @ inside @ of_z)


def loadings_of(covariance: Floats) -> Floats:
    """Return b (K,) such that b_i b_j is the correlation of the differences i and j.

    With missing cells the correlations need not be such products. Then b is the product form that
    fits their logarithms best, scaled down until no product lies above its correlation. Smaller
    correlations make larger constants, so that the intervals are a little too wide; with all
    correlations at 0, which is the most this can do, they are Šidák's (1967).
    """
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    n = len(correlation)
    off_diagonal = ~np.eye(n, dtype=bool)
    if n == 1 or correlation[off_diagonal].min() <= 0:
        return np.zeros(n)
    logarithms = np.where(off_diagonal, np.log(np.where(off_diagonal, correlation, 1.0)), 0.0)
    if n == 2:
        fitted = logarithms.sum(axis=1) / 2
    else:
        fitted = (logarithms.sum(axis=1) - logarithms.sum() / (2 * (n - 1))) / (n - 2)
    fitted = np.minimum(np.exp(fitted), 1.0)
    excess = (np.outer(fitted, fitted) / correlation)[off_diagonal].max()
    return fitted / math.sqrt(max(excess, 1.0))


def single_value(df: float, level: float = LEVEL) -> float:
    """Return what Student's |T| with ``df`` degrees exceeds with probability 1 - ``level``."""
    return t_quantile((1 - level) / 2, df)


def sidak_value(n: int, df: float, level: float = LEVEL) -> float:
    """Return the constant for ``n`` comparisons that share nothing, each with ``df`` degrees."""
    return single_value(df, level ** (1 / n))


@dataclass(frozen=True)
class Family:
    """Comparisons whose intervals hold together.

    Some share a table and its pooled error; others have nothing in common. All take as large a
    share of the family's errors: a |T| is judged by how rarely a |T| with the degrees of freedom of
    the pooled error is as large. The constants are those of the probability ``level`` ** slack, the
    slack being above 1 where the standard errors are larger than need be. The level is `LEVEL`, or
    that of one of several looks (`ablate.analysis.sequential`).
    """

    loadings: tuple[float, ...]  # of the comparisons of the table
    df: float  # degrees of freedom of the pooled error; 0 if there is none
    n_separate: int = 0
    slack: float = 1.0
    level: float = LEVEL

    @cached_property
    def critical(self) -> float | None:
        """The constant of the degrees of freedom of the pooled error; None if there is none."""
        if not self.loadings or self.df == 0:
            return None
        return critical_value(self._all, self.df, self.level**self.slack)

    def critical_of(self, df: float) -> float:
        """Return the constant of a comparison whose error has ``df`` degrees of freedom."""
        shared = self.critical
        if shared is None:
            return sidak_value(self.n_separate, df, self.level)
        return shared if df == self.df else t_quantile(float(special.stdtr(self.df, -shared)), df)

    def p_of(self, statistic: float, df: float) -> float:
        """Return the adjusted p value of a |T| with ``df`` degrees of freedom, to within 1e-9.

        It is below 1 - `LEVEL` where the interval leaves out 0, at a look too.
        """
        below = float(special.stdtr(df, -statistic))
        if self.critical is None:
            return self._of_look(1 - (1 - 2 * below) ** self.n_separate)
        if df != self.df:
            statistic = t_quantile(below, self.df) if below > 0 else math.inf
        covered = _between_0_and_1(coverage(statistic, self._all, self.df))
        return self._of_look(1 - covered ** (1 / self.slack))

    def _of_look(self, p: float) -> float:
        return _between_0_and_1(p * (1 - LEVEL) / (1 - self.level))

    @property
    def _all(self) -> tuple[float, ...]:
        return (*self.loadings, *[0.0] * self.n_separate)


def smallest_detectable(standard_error: float, critical: float, df: float) -> float:
    """Return the true difference whose interval leaves out 0 with probability `POWER`."""
    return standard_error * _noncentrality(round(critical, 9), float(df))


@lru_cache(maxsize=1024)
def _noncentrality(critical: float, df: float) -> float:
    s, of_s = _error_nodes(df)

    def excess_power(shift: float) -> float:
        beyond = special.ndtr(shift - critical * s) + special.ndtr(-shift - critical * s)
        return float(of_s @ beyond) - POWER

    # an error far above its true size, which s is there, hides shifts up to critical times s
    return _root(excess_power, 0.0, critical * s[-1] + _FURTHEST)


@lru_cache(maxsize=1024)
def _critical(loadings: tuple[float, ...], df: float, level: float) -> float:
    low = single_value(df, level)  # of one comparison; Šidák's is never below the constant
    high = sidak_value(len(loadings), df, level)
    if high - low < 1e-9:
        return low

    return _root(lambda c: coverage(c, loadings, df) - level, low * (1 - 1e-6), 1.02 * high)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function that rises from below 0 at ``low`` is 0, by the Illinois method."""
    at_low, at_high = rising(low), rising(high)
    while high - low > _ROOT_WITHIN:
        middle = high - at_high * (high - low) / (at_high - at_low)
        value = rising(middle)
        if abs(value) < _ROOT_WITHIN:
            return middle
        if value < 0:
            low, at_low, at_high = middle, value, at_high / 2
        else:
            high, at_high, at_low = middle, value, at_low / 2
    return (low + high) / 2


def _between_0_and_1(p: float) -> float:
    return min(max(p, 0.0), 1.0)


def _n_nodes(b: float) -> int:
    """Return how many nodes the integral over z needs: its edges are sqrt(1 - b²) wide."""
    times = math.sqrt(0.5 / (1 - b * b))  # as many as at b² = 1/2, and below
    return min(_MOST_NODES, _N_NODES * 2 ** math.ceil(math.log2(times)))


@cache
def _nodes(n: int) -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(n)


@lru_cache(maxsize=64)
def _error_nodes(df: float) -> tuple[Floats, Floats]:
    """Return where s is looked at, the estimated over the true standard deviation, and weights."""
    if math.isinf(df):
        return np.ones(1), np.ones(1)
    nodes, weights = _nodes(_N_NODES)
    half = df / 2
    least = math.sqrt(special.gammaincinv(half, _UNLIKELY) / half)
    most = math.sqrt(special.gammainccinv(half, _UNLIKELY) / half)
    # the square puts many nodes near 0, where few degrees of freedom put much
    reach = (math.sqrt(most) - math.sqrt(least)) / 2
    root = math.sqrt(least) + reach * (nodes + 1)
    s = root**2
    log_density = half * math.log(half) - math.lgamma(half) + (df - 1) * np.log(s) - half * s * s
    return s, 2 * np.exp(log_density) * 2 * root * reach * weights
