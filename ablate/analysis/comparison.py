"""Every row of a table less the baseline, with intervals that hold for the whole table at once.

The rows of one metric over seeds follow the additive model of `ablate.analysis.two_way`. Each has
an error between its own and the pooled one (`ablate.analysis.spreads`); the intervals are
Dunnett's. Some rows are not of that model:

- Rows that have the weights of another row, because they differ in decoding alone or compute the
  same, share its error of training, and count once in the pooled one. With the weights of the
  baseline that error drops out: the interval is of the paired differences alone, for searches do
  not spread alike, and a row that has the same values too is called so. Any other stands in the
  table in place of the row whose weights it has.

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy import special

from ablate.analysis import dunnett, spreads
from ablate.analysis.dunnett import BALANCED, Family
from ablate.analysis.statistics import LEVEL, Interval, mean_of, paired_differences
from ablate.analysis.two_way import Floats, two_way

Values = Mapping[str, Mapping[int, float]]
"""One metric by row, the baseline first, and seed."""

Quadruple = tuple[str, str, str, str]
"""The rows with two changes: with both, the first, the second, and neither."""

Method = Literal["two-way", "moderated", "paired", "shared", "same", "divergence as 0", "none"]

DEPARTURE_LEVEL = 0.001
"""The level of the F test for a whole table: the share of tables with a false departure."""


@dataclass(frozen=True)
class Difference:
    """One row less the baseline; without an interval, all below ``method`` is None.

    The method is ``two-way``: least squares with the pooled error, which two rows have, and without
    an interval, one seed; ``moderated``: least squares with an error between the row's own and the
    pooled one; ``paired``: the mean of the row's own paired differences, with their error;
    ``shared``: likewise, of a row with the baseline's weights; ``same``: the row has the baseline's
    weights and values; ``divergence as 0``: the mean of paired differences without an interval;
    ``none``: no interval, because a value has no bound, a loss has diverged runs or nothing joins
    the two.
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
    median_unbiased: float | None = None  # the estimate of a row that a look has found to differ

    @property
    def critical(self) -> float | None:
        """The constant of the simultaneous interval."""
        if self.family is None or self.df is None:
            return None
        return self.family.critical_of(self.df)

    @property
    def p(self) -> float | None:
        """The p value of no difference, adjusted for all rows."""
        if self.family is None or self.standard_error is None or self.df is None:
            return None
        statistic = math.inf if self.estimate else 0.0
        if self.standard_error > 0 and self.estimate is not None:
            statistic = abs(self.estimate) / self.standard_error
        return self.family.p_of(statistic, self.df)


@dataclass(frozen=True)
class Comparison:
    """The rows of one metric, compared with the baseline."""

    differences: Mapping[str, Difference]  # by row, without the baseline
    sd: float | None  # pooled, of one run; None without degrees of freedom
    df: int
    family: Family  # the comparisons that have intervals
    departed: tuple[str, ...] = ()  # rows whose spread departs, so that they have left the model
    # rows with the weights of a row above them, and the first such row
    sharing: Mapping[str, str] = field(default_factory=dict)
    diverged: tuple[str, ...] = ()  # rows with diverged seeds

    def without_intervals(self) -> Comparison:
        """Return the estimates alone, of what is not to be judged."""
        bare = {
            row: replace(
                each, standard_error=None, df=None, single=None, simultaneous=None, family=None
            )
            for row, each in self.differences.items()
        }
        return replace(self, differences=bare, family=Family((), 0))

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


@dataclass(frozen=True)
class Promise:
    """What intervals are to hold with, and for which rows; at one of several looks it is more.

    Attributes:
        level: the probability with which all simultaneous intervals hold.
        level_of_one: that with which a row's single interval holds.
        n_closed: rows that belong to the family and are no longer in the table.
    """

    level: float = LEVEL
    level_of_one: float = LEVEL
    n_closed: int = 0


ONE_TABLE = Promise()


def compare(
    values: Values,
    diverged: Mapping[str, Collection[int]] | None = None,
    *,
    is_score: bool = True,
    trained_by: Mapping[str, str] | None = None,
    promise: Promise = ONE_TABLE,
) -> Comparison:
    """Compare every row of one metric with the first; in a score a diverged seed counts as 0.

    Args:
        values: of the metric.
        diverged: seeds by row.
        is_score: whether it is.
        trained_by: for each row that has the weights of a row above it, the first such row.
        promise: of the intervals.
    """
    failed = {row: set(diverged.get(row, ())) if diverged else set() for row in values}
    baseline, *others = values
    whole = [
        row
        for row, of_row in values.items()
        if of_row and all(map(math.isfinite, of_row.values())) and not failed[row]
    ]
    sharing = {row: by for row, by in (trained_by or {}).items() if row in whole and by in whole}
    zeros = failed if is_score else {}
    by_row = {row: _without_interval(values, zeros, row) for row in others}
    table = {row: values[row] for row in whole}
    pool, departed, fits = _fitted(table, sharing, baseline, promise.n_closed)
    n_separate = sum(fit.df is not None and row not in pool.fits for row, fit in fits.items())
    loadings = pool.loadings
    if loadings:
        loadings += (BALANCED,) * promise.n_closed
    else:
        n_separate += promise.n_closed
    family = Family(loadings, pool.df, n_separate, pool.slack, promise.level)
    by_row |= {
        row: _with_intervals(by_row[row], fit, family, promise.level_of_one)
        for row, fit in fits.items()
    }
    return Comparison(
        differences=by_row,
        sd=pool.sd,
        df=pool.df,
        family=family,
        departed=tuple(row for row in values if row in departed),
        sharing=sharing,
        diverged=tuple(row for row in values if failed[row]),
    )


def _fitted(
    values: Values, sharing: Mapping[str, str], baseline: str, n_closed: int
) -> tuple[_Pool, set[str], dict[str, _Fit]]:
    """Return the pool of independent rows, the rows that depart, and every row's fit."""
    pools, departed = [], set()
    fits: dict[str, _Fit] = {}
    for rows, judged in _tables(list(values), sharing, baseline):
        departing = _departed({row: values[row] for row in rows})
        pool = {row: values[row] for row in rows if row not in departing}
        pools.append(_Pool(pool, baseline, n_closed))
        fits |= {row: fit for row, fit in pools[-1].fits.items() if row in judged}
        departed |= departing
    pools[0].slack = min(pool.slack for pool in pools)
    for row in values if baseline in values else ():  # the others: of their own paired differences
        pairs = _pairs(values, row, baseline)
        has_weights = sharing.get(row) == baseline
        if row in (baseline, *fits) or not pairs:
            continue
        if has_weights and not any(pairs):
            fits[row] = _Fit("same", 0.0)
        elif len(pairs) > 1:
            error = float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs))
            method: Method = "shared" if has_weights else "paired"
            fits[row] = _Fit(method, mean_of(pairs), error, len(pairs) - 1)
    return pools[0], departed, fits


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
    from it or one has the weights of another, that of the interaction's own values. ``n_intervals``
    hold together (Šidák).
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
    is_apart = any(row in (*compared.departed, *compared.sharing) for row in rows)
    if is_apart and n > 1:
        error, df = float(np.std(each, ddof=1)) / math.sqrt(n), n - 1
    elif not is_apart and compared.sd is not None and compared.df:
        error, df = 2 * compared.sd / math.sqrt(n), compared.df
    else:
        return Interaction(mean, n, None)
    half = dunnett.sidak_value(n_intervals, df, compared.family.level) * error
    return Interaction(mean, n, Interval.around(mean, half))


def _tables(
    rows: Sequence[str], sharing: Mapping[str, str], baseline: str
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield tables of rows with independent errors, the whole one first, and whom each judges."""
    independent = [row for row in rows if row not in sharing]
    yield independent, independent
    for row, by in sharing.items():
        if by != baseline:
            yield [row if other == by else other for other in independent], [row]


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


@dataclass(frozen=True)
class _Fit:
    """An estimated difference, and its error if there is one to judge by."""

    method: Method
    estimate: float
    error: float | None = None
    df: float | None = None


class _Pool:
    """Rows that follow the additive model; the baseline may be one of them."""

    def __init__(self, values: Values, baseline: str, n_closed: int) -> None:
        self.fits: dict[str, _Fit] = {}
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
        estimates = model.differences(array)
        if model.df == 0:
            self.fits = {others[i]: _Fit("two-way", float(estimates[i])) for i in at}
            return
        if len(at):
            covariance = model.covariance[np.ix_(at, at)]
            self.loadings = tuple(dunnett.loadings_of(covariance).tolist())
        self.slack = spreads.slack(len(others) + n_closed, model.df)
        of_rows = spreads.errors(model, array)
        method: Method = "moderated" if len(others) > 1 else "two-way"
        for i in at:
            error, df = float(of_rows.standard[i]), float(of_rows.df[i])
            self.fits[others[i]] = _Fit(method, float(estimates[i]), error, df)


def _without_interval(values: Values, zeros: Mapping[str, Collection[int]], row: str) -> Difference:
    """Return the mean of a row's pairs, in which the seeds of ``zeros`` count as 0."""
    baseline = next(iter(values))
    has_zeros = bool(zeros.get(row) or zeros.get(baseline))
    both = {n: {**dict.fromkeys(zeros.get(n, ()), 0.0), **values[n]} for n in (baseline, row)}
    pairs = _pairs(both, row, baseline)
    n_won = sum(pair > 0 for pair in pairs)
    mean = mean_of(pairs) if pairs else None
    return Difference(mean, len(pairs), n_won, "divergence as 0" if has_zeros and pairs else "none")


def _with_intervals(bare: Difference, fit: _Fit, family: Family, level_of_one: float) -> Difference:
    fitted = replace(bare, method=fit.method, estimate=fit.estimate)
    if fit.error is None or fit.df is None:
        return fitted
    single = Interval.around(fit.estimate, dunnett.single_value(fit.df, level_of_one) * fit.error)
    simultaneous = Interval.around(fit.estimate, family.critical_of(fit.df) * fit.error)
    own = replace(fitted, standard_error=fit.error, df=fit.df, single=single)
    return replace(own, simultaneous=simultaneous, family=family)


def _pairs(values: Values, row: str, baseline: str) -> list[float]:
    return list(paired_differences(values[row], values[baseline]).values())


def _array(values: Values) -> Floats:
    """Return the values as an array (R, S), NaN where a row lacks a seed."""
    seeds = sorted({seed for of_row in values.values() for seed in of_row})
    return np.array([[of_row.get(seed, math.nan) for seed in seeds] for of_row in values.values()])
