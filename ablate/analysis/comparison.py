"""Every row of a table less the baseline, with intervals that hold for the whole table at once.

The rows of one metric over seeds follow the additive model of `ablate.analysis.two_way`, with one
pooled error; the intervals are Dunnett's. Three kinds of rows are not of that model:

- A row whose spread departs from the others' (F test at `DEPARTURE_LEVEL`) has an interval of its
  own, from its paired differences alone.
- A row with diverged seeds has no interval: those of the survivors would be of another question. Its
  difference counts a divergence as a score of 0, where the metric is a score.
- A row without a pair of seeds has nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ablate.analysis import dunnett
from ablate.analysis.statistics import LEVEL, Interval
from ablate.analysis.two_way import TwoWay, two_way

Floats = NDArray[np.float64]
Method = Literal["two-way", "paired", "divergence as 0", "none"]

DEPARTURE_LEVEL = 0.001
"""The share of rows that the F test calls departing although their spread is the others'."""


@dataclass(frozen=True)
class Difference:
    """One row less the baseline.

    Attributes:
        estimate: of the true difference; None where nothing can be said.
        n: seeds that both rows have, done or, where divergence counts as 0, diverged.
        method: ``two-way``: least squares with the pooled error; ``paired``: the mean of the row's
            own paired differences, with their error; ``divergence as 0``: likewise, without an
            interval; ``none``.
        standard_error: None without an interval.
        df: degrees of freedom of the error; None without an interval.
        single: the interval that holds for this row by itself.
        simultaneous: the interval that holds together with those of all other rows.
        p: of no difference, adjusted for all rows of the table.
        n_won: of the ``n`` seeds, those in which the row has the higher value.
    """

    estimate: float | None
    n: int
    method: Method
    standard_error: float | None = None
    df: float | None = None
    single: Interval | None = None
    simultaneous: Interval | None = None
    p: float | None = None
    n_won: int = 0


@dataclass(frozen=True)
class Comparison:
    """The rows of one metric, compared with the baseline.

    Attributes:
        differences: by row, without the baseline.
        sd: the pooled standard deviation of one run; None without degrees of freedom.
        df: its degrees of freedom.
        critical: Dunnett's constant of the rows with the pooled error; None where there are none.
        departed: rows whose spread departs.
        diverged: rows with diverged seeds.
    """

    differences: Mapping[str, Difference]
    sd: float | None
    df: int
    critical: float | None
    departed: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()

    @property
    def detectable(self) -> Interval | None:
        """The least and the largest over rows of the true difference found in 4 cases of 5.

        Of the rows with the pooled error, by their simultaneous intervals, with the pairs done.
        """
        pooled = [each for each in self.differences.values() if each.method == "two-way"]
        errors = [each.standard_error for each in pooled if each.standard_error is not None]
        if not errors or self.critical is None:
            return None
        low, high = (
            dunnett.smallest_detectable(error, self.critical, self.df)
            for error in (min(errors), max(errors))
        )
        return Interval(low, high)


def compare(
    values: Mapping[str, Mapping[int, float]],
    diverged: Mapping[str, Collection[int]] | None = None,
    *,
    is_score: bool = True,
) -> Comparison:
    """Compare every row of one metric with the first one.

    Args:
        values: by row, the baseline first, and seed; of the runs that are done.
        diverged: seeds of runs that diverged, by row.
        is_score: whether a run that diverged has, in effect, the value 0.
    """
    return _Comparer(values, diverged or {}, is_score=is_score).result()


class _Comparer:
    """Sorts the rows by method, then has each method fill in its own."""

    def __init__(
        self,
        values: Mapping[str, Mapping[int, float]],
        diverged: Mapping[str, Collection[int]],
        *,
        is_score: bool,
    ) -> None:
        self.values = {row: dict(of_row) for row, of_row in values.items()}
        self.names = list(self.values)
        self.baseline, *self.others = self.names
        self.diverged = {row: set(diverged.get(row, ())) for row in self.names}
        self.is_score = is_score
        self.seeds = sorted({seed for of_row in self.values.values() for seed in of_row})
        self.array = np.array(
            [[self.values[row].get(seed, math.nan) for seed in self.seeds] for row in self.names]
        ).reshape(len(self.names), len(self.seeds))  # (R, S)
        self.departed = self._departed()

    def result(self) -> Comparison:
        """Return the comparison of all rows."""
        found = {row: self._without_interval(row) for row in self.others}
        pooled, model = self._pooled, self.model
        has_error = model is not None and model.df > 0
        critical = self._critical(pooled) if pooled and has_error else None
        if model is not None:
            found |= self._of_model(model, pooled, critical)
        paired = [row for row in self._comparable if row not in pooled]
        found |= {row: self._paired(row, critical) for row in paired}
        variance = float(model.variance(self._of_rows(self._modelled))) if has_error else None
        return Comparison(
            differences={row: found[row] for row in self.others},
            sd=None if variance is None else math.sqrt(variance),
            df=model.df if model is not None else 0,
            critical=critical,
            departed=tuple(row for row in self.names if row in self.departed),
            diverged=tuple(row for row in self.names if self.diverged[row]),
        )

    @cached_property
    def _whole(self) -> list[str]:
        """Rows that are not kept from the model by a divergence or a value without bound."""
        finite = [row for row in self.names if np.isfinite(self._known(row)).all()]
        return [row for row in finite if self.values[row] and not self.diverged[row]]

    @cached_property
    def _comparable(self) -> list[str]:
        """Rows that can be compared with the baseline by an interval, if there are seeds enough."""
        return [row for row in self._whole if row in self.others and self.baseline in self._whole]

    @property
    def _modelled(self) -> list[str]:
        return [row for row in self._whole if row not in self.departed]

    @cached_property
    def _pooled(self) -> list[str]:
        """Rows whose difference follows from the model."""
        if self.baseline not in self._modelled or self.model is None:
            return []
        others = self._modelled[1:]
        return [row for row, ok in zip(others, self.model.is_estimable, strict=True) if ok]

    @cached_property
    def model(self) -> TwoWay | None:
        """The model of the rows that follow it; None without any two."""
        if len(self._modelled) < 2:
            return None
        return two_way(np.isfinite(self._of_rows(self._modelled)))

    def _departed(self) -> set[str]:
        """Take rows away for as long as the one that departs most departs at the level."""
        rows = list(self._whole)
        while len(rows) > 2:
            array = self._of_rows(rows)
            model = two_way(np.isfinite(array))
            ratios, df = model.departures(array)
            rest = model.df - df
            chances = stats.f.sf(np.nan_to_num(ratios), np.maximum(df, 1), np.maximum(rest, 1))
            chances[np.isnan(ratios)] = 1.0
            least = int(np.argmin(chances))
            if chances[least] >= DEPARTURE_LEVEL:
                break
            rows.pop(least)
        return set(self._whole) - set(rows)

    def _critical(self, pooled: Sequence[str]) -> float:
        """Return the constant of the family of all comparisons; those apart share nothing."""
        assert self.model is not None, "rows are pooled in a model"
        at = [self._modelled[1:].index(row) for row in pooled]
        loadings = dunnett.loadings_of(self.model.covariance[np.ix_(at, at)])
        apart = [0.0] * (len(self._comparable) - len(pooled))
        return dunnett.critical_value([*loadings, *apart], self.model.df, LEVEL)

    def _of_model(
        self, model: TwoWay, pooled: Sequence[str], critical: float | None
    ) -> dict[str, Difference]:
        if not pooled:
            return {}
        array = self._of_rows(self._modelled)
        estimates = dict(zip(self._modelled[1:], model.differences(array), strict=True))
        if critical is None:
            return {row: self._bare(row, float(estimates[row]), "two-way") for row in pooled}
        scale = np.diag(model.covariance) * model.variance(array)
        errors = dict(zip(self._modelled[1:], np.sqrt(scale), strict=True))
        at = [self._modelled[1:].index(row) for row in pooled]
        loadings = dunnett.loadings_of(model.covariance[np.ix_(at, at)])
        apart = [0.0] * (len(self._comparable) - len(pooled))
        found = {}
        for row in pooled:
            estimate, error = float(estimates[row]), float(errors[row])
            p = 1 - dunnett.coverage(_statistic(estimate, error), [*loadings, *apart], model.df)
            bare = self._bare(row, estimate, "two-way")
            found[row] = _with_intervals(bare, error, model.df, critical, p)
        return found

    def _paired(self, row: str, critical: float | None) -> Difference:
        """Return the difference of a row from its own paired differences alone."""
        pairs = self._pairs(row)
        if not pairs:
            return self._bare(row, None, "none")
        mean, n = float(np.mean(pairs)), len(pairs)
        bare = self._bare(row, mean, "paired")
        if n < 2:
            return bare
        df, n_rows = n - 1, len(self._comparable)
        error = float(np.std(pairs, ddof=1)) / math.sqrt(n)
        of_p = 2 * float(stats.t.sf(_statistic(mean, error), df))
        if critical is None or self.model is None:
            own = dunnett.sidak_value(n_rows, df, LEVEL)
            p = -math.expm1(n_rows * math.log1p(-of_p)) if of_p < 1 else 1.0
        else:
            own = dunnett.equivalent_value(critical, self.model.df, df)
            p = self._equivalent_p(_statistic(mean, error), df)
        return _with_intervals(bare, error, df, own, p)

    def _equivalent_p(self, statistic: float, df: int) -> float:
        """Return the p of the family for a row apart: where the pooled rows have as rare a T."""
        assert self.model is not None, "there is a pooled error to compare with"
        rare = float(stats.t.sf(statistic, df))
        size = float(stats.t.isf(rare, self.model.df)) if rare > 0 else math.inf
        at = [self._modelled[1:].index(row) for row in self._pooled]
        loadings = dunnett.loadings_of(self.model.covariance[np.ix_(at, at)])
        apart = [0.0] * (len(self._comparable) - len(self._pooled))
        return 1 - dunnett.coverage(size, [*loadings, *apart], self.model.df)

    def _without_interval(self, row: str) -> Difference:
        """Return what can be said of a row that diverged, or whose values have no bound."""
        if not self.is_score or not (self.diverged[row] or self.diverged[self.baseline]):
            pairs = self._pairs(row)
            return self._bare(row, float(np.mean(pairs)) if pairs else None, "none")
        pairs = self._pairs(row, with_zeros=True)
        return self._bare(row, float(np.mean(pairs)) if pairs else None, "divergence as 0")

    def _bare(self, row: str, estimate: float | None, method: Method) -> Difference:
        pairs = self._pairs(row, with_zeros=method == "divergence as 0")
        n_won = sum(pair > 0 for pair in pairs)
        return Difference(estimate, n=len(pairs), method=method, n_won=n_won)

    def _pairs(self, row: str, *, with_zeros: bool = False) -> list[float]:
        ours, theirs = (
            {**dict.fromkeys(self.diverged[name], 0.0), **self.values[name]}
            if with_zeros
            else self.values[name]
            for name in (row, self.baseline)
        )
        return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]

    def _of_rows(self, rows: Sequence[str]) -> Floats:
        return self.array[[self.names.index(row) for row in rows]]

    def _known(self, row: str) -> list[float]:
        return list(self.values[row].values())


def _with_intervals(
    bare: Difference, error: float, df: float, critical: float, p: float
) -> Difference:
    estimate = bare.estimate
    assert estimate is not None, "an interval is around an estimate"
    single, together = (
        Interval(estimate - c * error, estimate + c * error)
        for c in (dunnett.single_value(df, LEVEL), critical)
    )
    return Difference(
        estimate=estimate,
        n=bare.n,
        method=bare.method,
        standard_error=error,
        df=df,
        single=single,
        simultaneous=together,
        p=min(max(p, 0.0), 1.0),
        n_won=bare.n_won,
    )


def _statistic(estimate: float, error: float) -> float:
    if error > 0:
        return abs(estimate) / error
    return math.inf if estimate else 0.0
