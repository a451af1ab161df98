"""Interactions: the effect of two changes together beyond the sum of their effects alone.

With values y of one metric, the row that has both changes, those that have one, and the row that
has neither: the interaction is y(both) - y(first) - y(second) + y(neither), seed by seed. In the
model of `ablate.analysis.two_way` its mean over n seeds has the variance 4 sd² / n (Scheffé 1959,
"The Analysis of Variance", ch. 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ablate.analysis.comparison import Comparison
from ablate.analysis.dunnett import sidak_value
from ablate.analysis.statistics import Interval, mean_of

Quadruple = tuple[str, str, str, str]
"""The rows with both changes, the first, the second, and neither."""


@dataclass(frozen=True)
class Interaction:
    """An interaction in one metric, the mean over the ``n`` seeds that all four rows have.

    The interval holds together with those of all other interactions of the figure; it is None
    where there is no error to judge by.
    """

    estimate: float
    n: int
    interval: Interval | None

    @property
    def differs_from_0(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


def interaction(
    rows: Quadruple,
    values: Mapping[str, Mapping[int, float]],
    compared: Comparison,
    n_intervals: int = 1,
) -> Interaction | None:
    """Return the interaction of four rows; None if one has diverged, or they share no seed.

    The error is the pooled one of the comparison, or where the spread of one of the four departs
    from it, that of the interaction's own values; one seed alone has none there.

    Args:
        rows: the four.
        values: of one metric, by row and seed.
        compared: the comparison of that metric.
        n_intervals: how many intervals hold together (Šidák).
    """
    if any(row in compared.diverged or row not in values for row in rows):
        return None
    both, first, second, neither = (values[row] for row in rows)
    seeds = sorted(set(both) & set(first) & set(second) & set(neither))
    if not seeds:
        return None
    each = [both[s] - first[s] - second[s] + neither[s] for s in seeds]
    mean, n = mean_of(each), len(each)
    if not math.isfinite(mean):
        return Interaction(mean, n, None)
    has_departed = any(row in compared.departed for row in rows)
    if has_departed and n > 1:
        error, df = float(np.std(each, ddof=1)) / math.sqrt(n), n - 1
    elif not has_departed and compared.sd is not None and compared.df:
        error, df = 2 * compared.sd / math.sqrt(n), compared.df
    else:
        return Interaction(mean, n, None)
    half = sidak_value(n_intervals, df) * error
    return Interaction(mean, n, Interval.around(mean, half))
