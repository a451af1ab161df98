"""One row's differences in several contexts: their mean, what a new context may show, and a trend.

The true difference of a context is drawn from a distribution over contexts, and is measured with
the error of its seeds. The interval of the mean is Student's, of the measured differences: so it
holds for contexts like these, whatever the errors of each (Hartung & Knapp 2001, "On tests of the
overall treatment effect in meta-analysis with normally distributed responses", with equal weights;
that unequal errors do no harm at 5% is of Ibragimov & Müller 2010, "t-statistic based correlation
and heterogeneity robust inference"). So is the prediction interval, of what the same seeds measure
in one more context (Higgins, Thompson & Spiegelhalter 2009, sec. 4.2, with the measured
differences' own variance in place of an estimated one). With two contexts there is neither, and the
interval of the mean is of new seeds in these two.

A row that is the same as the baseline in a context differs from it by 0 there, without error.

The trend is the slope of the least squares line through the differences over log2 of a number. Its
interval is of new seeds in these contexts, whether or not the true differences lie on a line.

At looks the data say when seeds end, and differences that end early are too large in all contexts
alike. Intervals of new seeds are then as wide as the contexts' repeated confidence intervals,
weighted and added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ablate.analysis.comparison import Difference
from ablate.analysis.dunnett import Floats, sidak_value
from ablate.analysis.statistics import Interval, mean_of

_APART = ("none", "divergence as 0")  # methods of differences that are not estimated with others
LEAST = 3
"""Contexts from which something is said of others like them."""


@dataclass(frozen=True)
class Slope:
    """By how much a difference changes where a number doubles."""

    estimate: float
    interval: Interval | None


@dataclass(frozen=True)
class OverContexts:
    """A row's differences, taken together; intervals hold together with those of other rows."""

    n: int
    mean: float
    here: Interval | None  # of new seeds in these contexts
    interval: Interval | None  # of contexts like these; of two the same as ``here``
    prediction: Interval | None  # of what the same seeds measure in a new context
    tau: float | None  # standard deviation of the true difference over contexts
    trend: Slope | None


def over_contexts(
    differences: Sequence[Difference | None],
    n_rows: int,
    sizes: Sequence[float] | None = None,
    *,
    has_looks: bool = False,
) -> OverContexts | None:
    """Return a row's differences taken together; None if one is missing or the row has diverged.

    Args:
        differences: of the row, one for each of at least two contexts.
        n_rows: whose intervals hold together (Šidák).
        sizes: the number in each context that the trend is over.
        has_looks: whether the differences say how many seeds they are of.
    """
    known = [
        replace(each, standard_error=0.0, df=math.inf) if each.method == "same" else each
        for each in differences
        if each is not None and each.method not in _APART
    ]
    estimates = [each.estimate for each in known if each.estimate is not None]
    n = len(differences)
    if len(known) < n or n < 2 or not all(map(math.isfinite, estimates)):
        return None
    weights = np.full(n, 1 / n)
    mean = mean_of(estimates)
    here = interval = _of_seeds(mean, weights, known, n_rows, has_looks)
    prediction = tau = None
    if n >= LEAST:
        sd = float(np.std(estimates, ddof=1))
        constant = sidak_value(n_rows, n - 1)
        interval = Interval.around(mean, constant * sd / math.sqrt(n))
        prediction = Interval.around(mean, constant * sd * math.sqrt(1 + 1 / n))
        errors = [each.standard_error for each in known if each.standard_error is not None]
        if len(errors) == n:
            tau = math.sqrt(max(0.0, sd**2 - mean_of([error**2 for error in errors])))
    trend = None
    if sizes is not None and len(set(sizes)) > 1:  # some contexts may have no results yet
        x = np.log2(sizes)
        slopes = (x - x.mean()) / float(((x - x.mean()) ** 2).sum())
        estimate = float(slopes @ np.array(estimates))
        trend = Slope(estimate, _of_seeds(estimate, slopes, known, n_rows, has_looks))
    return OverContexts(n, mean, here, interval, prediction, tau, trend)


def _of_seeds(
    estimate: float,
    weights: Floats,
    known: Sequence[Difference],
    n_rows: int,
    has_looks: bool,
) -> Interval | None:
    """Return the interval of a weighted sum of independent differences; None if one has no error.

    It is Welch and Satterthwaite's, and at looks the sum of their repeated confidence intervals.
    """
    parts, repeated = [], 0.0
    for weight, each in zip(weights, known, strict=True):
        if each.standard_error is None or not each.df:
            return None
        parts.append(((weight * each.standard_error) ** 2, each.df))
        repeated += abs(weight) * each.standard_error * (each.critical or 0.0)
    if has_looks:
        return Interval.around(estimate, repeated)
    variance = sum(part for part, _ in parts)
    if not variance:
        return Interval(estimate, estimate)
    df = variance**2 / sum(part**2 / of_part for part, of_part in parts)
    return Interval.around(estimate, sidak_value(n_rows, df) * math.sqrt(variance))
