"""Every row of a table less the baseline, with intervals that hold for the whole table at once.

The rows of one metric over seeds follow the additive model of `ablate.analysis.two_way`, with one
pooled error; the intervals are Dunnett's. A row whose spread stands out has a wider one
(`ablate.analysis.spreads`). Two kinds of rows are not of that model:

- A row whose spread departs from the others' (F test at `DEPARTURE_LEVEL`) has an interval of its
  own, from its paired differences alone.
- A row with diverged seeds has no interval: that of the other seeds would answer another question.
  Where the metric is a score, its difference counts a divergence as 0, and the seeds in which the
  row is higher are counted.

A row of the model that shares no seed with the baseline is compared by way of rows that share seeds
with both. Where none do, it has no difference.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablate.analysis import dunnett, spreads
from ablate.analysis.dunnett import Family
from ablate.analysis.statistics import Interval, mean_of, paired_differences
from ablate.analysis.two_way import two_way

Floats = NDArray[np.float64]
Values = Mapping[str, Mapping[int, float]]
"""One metric by row, the baseline first, and seed."""

Quadruple = tuple[str, str, str, str]
"""The rows with two changes: with both, the first, the second, and neither."""

Method = Literal["two-way", "moderated", "paired", "divergence as 0", "none"]

DEPARTURE_LEVEL = 0.001
"""The level of the F test for a whole table: the share of tables with a false departure."""


@dataclass(frozen=True)
class Difference:
    """One row less the baseline; without an interval, all below ``method`` is None.

    The method is ``two-way``: least squares with the pooled error; ``moderated``: least squares
    with a larger one, because the spread of the row or the baseline stands out; ``paired``: the
    mean of the row's own paired differences, with their error; ``divergence as 0``: such a mean
    without an interval; ``none``: no interval, because a value has no bound, a loss has diverged
    runs or nothing joins the two.
    """

    estimate: float | None  # None if neither common seeds nor other rows join the two
    n: int  # seeds that both have: done or, where divergence counts as 0, diverged
    n_won: int  # of these, the seeds in which the row has the higher value
    method: Method
    standard_error: float | None = None
    df: float | None = None  # degrees of freedom of the error
    single: Interval | None = None  # holds for this row by itself
    simultaneous: Interval | None = None  # holds together with those of all other rows
    family: Family | None = None  # the intervals that it holds together with
    with_sentences: Interval | None = None  # simultaneous, of new test sentences as well

    @property
    def critical(self) -> float | None:
        """The constant of the simultaneous interval."""
        if self.family is None or self.df is None:
            return None
        is_shared = self.method == "two-way"
        return self.family.critical if is_shared else self.family.critical_separate(self.df)

    @property
    def p(self) -> float | None:
        """The p value of no difference, adjusted for all rows."""
        if self.family is None or self.standard_error is None or self.df is None:
            return None
        statistic = math.inf if self.estimate else 0.0
        if self.standard_error > 0 and self.estimate is not None:
            statistic = abs(self.estimate) / self.standard_error
        if self.method in ("paired", "moderated"):
            return self.family.p_separate(statistic, self.df)
        return self.family.p(statistic)


@dataclass(frozen=True)
class Comparison:
    """The rows of one metric, compared with the baseline."""

    differences: Mapping[str, Difference]  # by row, without the baseline
    sd: float | None  # pooled, of one run; None without degrees of freedom
    df: int
    family: Family  # the comparisons that have intervals
    departed: tuple[str, ...] = ()  # rows whose spread departs, so that they have left the model
    standing_out: Mapping[str, float] = field(default_factory=dict)  # levels of their F tests
    diverged: tuple[str, ...] = ()  # rows with diverged seeds

    @property
    def detectable(self) -> Interval | None:
        """The least and largest true difference that is told from 0 with a probability of 80%."""
        fitted = [e for e in self.differences.values() if e.method in ("two-way", "moderated")]
        sizes = [
            dunnett.smallest_detectable(each.standard_error, each.critical, each.df)
            for each in fitted
            if each.standard_error and each.df and each.critical
        ]
        return Interval(min(sizes), max(sizes)) if sizes else None


def compare(
    values: Values,
    diverged: Mapping[str, Collection[int]] | None = None,
    *,
    is_score: bool = True,
) -> Comparison:
    """Compare every row of one metric with the first; in a score a diverged seed counts as 0."""
    failed = {row: set(diverged.get(row, ())) if diverged else set() for row in values}
    baseline, *others = values
    whole = [
        row
        for row, of_row in values.items()
        if of_row and all(map(math.isfinite, of_row.values())) and not failed[row]
    ]
    departed = _departed({row: values[row] for row in whole})
    pool = _Pool({row: values[row] for row in whole if row not in departed}, baseline)
    separate = [row for row in others if row in whole and row not in pool.rows]
    separate = [row for row in separate if baseline in whole and len(_pairs(values, row)) > 1]
    family = Family(pool.loadings, pool.df, len(separate), pool.slack)
    zeros = failed if is_score else {}
    by_row = {row: _without_interval(values, zeros, row) for row in others}
    by_row |= {row: pool.difference(by_row[row], row, family) for row in pool.rows}
    for row in separate:  # of its own paired differences alone
        pairs = _pairs(values, row)
        paired, error = replace(by_row[row], method="paired"), np.std(pairs, ddof=1)
        freedom = len(pairs) - 1, family.critical_separate(len(pairs) - 1)
        by_row[row] = _with_intervals(paired, float(error) / math.sqrt(len(pairs)), freedom, family)
    return Comparison(
        differences=by_row,
        sd=pool.sd,
        df=pool.df,
        family=family,
        departed=tuple(row for row in values if row in departed),
        standing_out=pool.standing_out,
        diverged=tuple(row for row in values if failed[row]),
    )


@dataclass(frozen=True)
class Interaction:
    """The effect of two changes together beyond the sum of their effects alone.

    The row that has both changes, less those that have one, plus the row that has neither, as the
    mean over the ``n`` seeds that all four have. In the model of `ablate.analysis.two_way` its
    variance is 4 sd² / n (Scheffé 1959, "The Analysis of Variance", ch. 4).
    """

    estimate: float
    n: int
    interval: Interval | None  # None where there is no error to judge by

    @property
    def differs_from_0(self) -> bool:
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


def interaction(
    rows: Quadruple,
    values: Values,
    compared: Comparison,
    n_intervals: int = 1,
) -> Interaction | None:
    """Return the interaction of four rows; None if one has diverged, or they share no seed.

    The error is the pooled one of the comparison, or where the spread of one of the four departs
    from it, that of the interaction's own values. ``n_intervals`` hold together (Šidák).
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
    half = dunnett.sidak_value(n_intervals, df) * error
    return Interaction(mean, n, Interval.around(mean, half))


def _departed(values: Values) -> set[str]:
    """Return the departing rows: remove the most extreme row as long as the F test rejects it."""
    rows = list(values)
    while len(rows) > 2:
        array = _array({row: values[row] for row in rows})
        model = two_way(np.isfinite(array))
        ratios, df = model.departures(array)
        tested = np.isfinite(ratios) | np.isposinf(ratios)
        chances = np.ones(len(rows))
        chances[tested] = special.fdtrc(df[tested], model.df - df[tested], ratios[tested])
        if len(rows) * chances.min() >= DEPARTURE_LEVEL:
            break
        rows.pop(int(np.argmin(chances)))
    return set(values) - set(rows)


class _Pool:
    """The rows that follow the additive model; the baseline may be one of them."""

    def __init__(self, values: Values, baseline: str) -> None:
        self.rows: list[str] = []
        self.standing_out: dict[str, float] = {}
        self.loadings: tuple[float, ...] = ()
        self.df, self.sd, self.slack = 0, None, 1.0
        if len(values) < 2:
            return
        array = _array(values)
        model = two_way(np.isfinite(array))
        if model.df > 0:
            self.df, self.sd = model.df, math.sqrt(model.variance(array))
        if baseline not in values:
            return
        _, *others = values
        at = np.flatnonzero(model.is_estimable)
        self.rows = [others[int(i)] for i in at]
        covariance = model.covariance[np.ix_(at, at)]
        self.loadings = tuple(dunnett.loadings_of(covariance).tolist()) if self.rows else ()
        self._estimates = dict(zip(self.rows, model.differences(array)[at], strict=True))
        if model.df == 0:
            return
        self.slack = spreads.slack(len(others), model.df)
        of_model = spreads.errors(model, array)
        of_rows = zip(of_model.standard[at], of_model.df[at], of_model.are_wider[at], strict=True)
        self._errors = dict(zip(self.rows, of_rows, strict=True))
        of_tests = zip(values, of_model.stand_out, of_model.levels, strict=True)
        self.standing_out = {row: float(level) for row, stands_out, level in of_tests if stands_out}

    def difference(self, bare: Difference, row: str, family: Family) -> Difference:
        """Return the difference of one of the rows by least squares."""
        fitted = replace(bare, estimate=float(self._estimates[row]), method="two-way")
        if self.sd is None or family.critical is None:
            return fitted
        error, df, is_wider = self._errors[row]
        if not is_wider:
            return _with_intervals(fitted, float(error), (self.df, family.critical), family)
        freedom = float(df), family.critical_separate(float(df))
        return _with_intervals(replace(fitted, method="moderated"), float(error), freedom, family)


def _without_interval(values: Values, zeros: Mapping[str, Collection[int]], row: str) -> Difference:
    """Return the mean of a row's pairs, in which the seeds of ``zeros`` count as 0."""
    baseline = next(iter(values))
    has_zeros = bool(zeros.get(row) or zeros.get(baseline))
    both = {n: {**dict.fromkeys(zeros.get(n, ()), 0.0), **values[n]} for n in (baseline, row)}
    pairs = _pairs(both, row)
    n_won = sum(pair > 0 for pair in pairs)
    mean = mean_of(pairs) if pairs else None
    return Difference(mean, len(pairs), n_won, "divergence as 0" if has_zeros and pairs else "none")


def _with_intervals(
    bare: Difference, error: float, freedom: tuple[float, float], family: Family
) -> Difference:
    """Add intervals by a standard error, its degrees of freedom and the simultaneous constant."""
    df, critical = freedom
    assert bare.estimate is not None, "an interval is around an estimate"
    single, simultaneous = (
        Interval.around(bare.estimate, c * error) for c in (dunnett.single_value(df), critical)
    )
    own = replace(bare, standard_error=error, df=df, single=single)
    return replace(own, simultaneous=simultaneous, family=family)


def _pairs(values: Values, row: str) -> list[float]:
    return list(paired_differences(values[row], values[next(iter(values))]).values())


def _array(values: Values) -> Floats:
    """Return the values as an array (R, S), NaN where a row lacks a seed."""
    seeds = sorted({seed for of_row in values.values() for seed in of_row})
    return np.array([[of_row.get(seed, math.nan) for seed in seeds] for of_row in values.values()])
