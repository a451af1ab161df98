"""Rows of one table against the same rows of another: the effect of a change of code or of a spec.

Every row has its own pair of samples. Where both have the values of the same seeds, the difference
is of pairs, and has an error between the row's own and the pooled one (`ablate.analysis.spreads`);
the rows' differences are taken as independent, so that the constant is that of the studentised
maximum modulus. A row whose spread departs from the others' has its own error alone, as in
`ablate.analysis.comparison`. Without two pairs the difference is of means, with Welch's (1947)
error and Šidák's constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy import special

from ablate.analysis.comparison import DEPARTURE_LEVEL
from ablate.analysis.dunnett import Family, single_value
from ablate.analysis.spreads import prior_df
from ablate.analysis.statistics import Estimate, Interval, mean_of, paired_differences

Method = Literal["equal", "paired", "unpaired", "none"]


@dataclass(frozen=True)
class RowSample:
    """One metric of one row over its seeds; without values where a table has the mean alone."""

    n: int
    mean: float
    sd: float | None
    values: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[int, float]) -> RowSample:
        estimate = Estimate(values)
        return cls(estimate.n, estimate.mean, estimate.sd, dict(values))


@dataclass(frozen=True)
class Shift:
    """The second sample of a row less the first; without an interval, all below ``method`` is None.

    The method is ``equal``: all pairs are, to the last bit, or without pairs, means and deviations;
    ``paired``; ``unpaired``: of means; ``none``: too few seeds for an interval.
    """

    estimate: float
    n: int  # pairs; without pairs, the values of the smaller sample
    method: Method
    standard_error: float | None = None
    df: float | None = None  # degrees of freedom of the error
    single: Interval | None = None  # holds for this row by itself
    simultaneous: Interval | None = None  # holds together with those of all other rows


@dataclass(frozen=True)
class _Error:
    """Of one difference: its mean square ``variance``, which ``scale`` makes a standard error."""

    variance: float
    df: float
    scale: float = 1.0


def compare_matched(pairs: Mapping[str, tuple[RowSample, RowSample]]) -> dict[str, Shift]:
    """Return what the second sample of every row is more than the first."""
    shifts = {row: _without_interval(*pair) for row, pair in pairs.items()}
    paired, separate = {}, {}
    for row, (before, after) in pairs.items():
        if shifts[row].method == "paired":
            sample = RowSample.of(dict(enumerate(_differences(before, after))))
            assert sample.sd is not None, "there are two pairs at least"
            paired[row] = _Error(sample.sd**2, sample.n - 1, 1 / math.sqrt(sample.n))
        elif shifts[row].method == "unpaired":  # Welch's error
            parts = [((each.sd or 0.0) ** 2 / each.n, each.n - 1) for each in (before, after)]
            variance = sum(part for part, _ in parts)
            noise = sum(part**2 / df for part, df in parts)
            freedom = variance**2 / noise if noise else before.n + after.n - 2
            separate[row] = _Error(variance, freedom)
    pool = _pool(paired)
    separate |= {row: error for row, error in paired.items() if row not in pool}
    df = sum(each.df for each in pool.values())
    family = Family((0.0,) * len(pool), df, len(separate))
    pooled = sum(each.variance * each.df for each in pool.values()) / df if df else 0.0
    errors = dict(separate)
    freedoms = np.array([each.df for each in pool.values()])
    ratios = np.array([each.variance for each in pool.values()]) / (pooled or 1.0)
    prior = float(prior_df(ratios, freedoms).item()) if len(pool) > 1 else 0.0
    for row, own in pool.items():
        variance = (prior * pooled + own.df * own.variance) / (prior + own.df)
        errors[row] = _Error(variance, min(prior + own.df, df), own.scale)
    for row, error in errors.items():
        shift, standard = shifts[row], math.sqrt(error.variance) * error.scale
        single = Interval.around(shift.estimate, single_value(error.df) * standard)
        simultaneous = Interval.around(shift.estimate, family.critical_of(error.df) * standard)
        known = shift.estimate, shift.n, shift.method
        shifts[row] = Shift(*known, standard, error.df, single, simultaneous)
    return shifts


def _without_interval(before: RowSample, after: RowSample) -> Shift:
    pairs = _differences(before, after)
    both = [(each.n, each.mean, each.sd) for each in (before, after)]
    has_means_alone = not (before.values and after.values)
    if (pairs and not any(pairs)) or (has_means_alone and both[0] == both[1]):
        return Shift(0.0, len(pairs) or before.n, "equal")
    if len(pairs) > 1:
        finite = all(map(math.isfinite, pairs))
        return Shift(mean_of(pairs), len(pairs), "paired" if finite else "none")
    known = before.sd is not None and after.sd is not None
    n = min(before.n, after.n)
    return Shift(after.mean - before.mean, n, "unpaired" if known else "none")


def _differences(before: RowSample, after: RowSample) -> list[float]:
    return list(paired_differences(after.values, before.values).values())


def _pool(errors: Mapping[str, _Error]) -> dict[str, _Error]:
    """Remove the most extreme row as long as the F test rejects it; return the others."""
    pool = dict(errors)
    while len(pool) > 2:
        chances = {row: _chance(pool, row) for row in pool}
        row = min(chances, key=lambda name: chances[name])
        if len(pool) * chances[row] >= DEPARTURE_LEVEL:
            break
        del pool[row]
    return pool


def _chance(pool: Mapping[str, _Error], row: str) -> float:
    """Return the probability of so large a spread of one row if all rows spread alike."""
    own = pool[row]
    df = sum(each.df for each in pool.values()) - own.df
    rest = sum(each.variance * each.df for name, each in pool.items() if name != row)
    if rest == 0:
        return 0.0 if own.variance else 1.0
    return float(special.fdtrc(own.df, df, own.variance * df / rest))
