"""Rows whose runs spread more than those of the other rows, but not so much as to leave their pool.

With few seeds the spread of one row is hardly known, and the pooled error of a table is its best
estimate. Where the spreads of rows differ, however, the pooled error is too small for rows of large
spread, which then cause most of a table's false differences. Therefore a row whose mean square
stands out from the rest of the table has a variance between its own and the pooled one,

    (prior pooled² + df own²) / (prior + df)    with prior + df degrees of freedom,

as in Smyth 2004, "Linear models and empirical Bayes methods", eq. 1, with a fixed prior, and no
less than the pooled one: with two seeds and many rows, some pass the test that spread a little less
than the others. The error of its difference from the baseline has Satterthwaite's (1946) degrees of
freedom. The pooled error still includes the row. Since these wider intervals err less often than
they may, all constants are made smaller (`slack`): where all rows spread alike, 5% of the tables
are wrong.

R rows, the baseline first; K = R - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablate.analysis.two_way import TwoWay

Floats = NDArray[np.float64]

# A row stands out at this level over the degrees of freedom within it, by an F test. Where all rows
# spread alike, 20% of them stand out with 3 seeds and 10% with 5. With few seeds the test has
# little power, so that the level must be high for tables of 25 rows to have no more false
# differences than promised; with more seeds a lower level is enough.
STANDING_OUT_LEVEL = 0.4

# How many degrees of freedom the pooled variance is worth as a guess at that of one row: as many as
# two runs of the row itself have. With more, tables whose rows' spreads differ as those of measured
# rows do would have more false differences than promised (docs/statistics.md).
PRIOR_DF = 1.0

SEEDS = (2, 3, 4, 5, 7, 10)
ROWS = (1, 2, 3, 4, 6, 10, 15, 25, 50)
_SLACK = (
    (1.00, 1.13, 1.21, 1.28, 1.49, 1.86, 2.10, 2.20, 2.27),  # 2 seeds
    (1.00, 1.14, 1.19, 1.31, 1.42, 1.45, 1.49, 1.47, 1.48),  # 3 seeds
    (1.00, 1.10, 1.18, 1.23, 1.28, 1.28, 1.31, 1.28, 1.27),  # 4 seeds
    (1.00, 1.10, 1.13, 1.16, 1.21, 1.20, 1.22, 1.21, 1.20),  # 5 seeds
    (1.00, 1.06, 1.07, 1.10, 1.13, 1.13, 1.12, 1.15, 1.14),  # 7 seeds
    (1.00, 1.06, 1.06, 1.07, 1.06, 1.09, 1.07, 1.10, 1.06),  # 10 seeds
)


@dataclass(frozen=True)
class Errors:
    """The errors of estimated differences of one or more tables."""

    standard: Floats  # standard errors, (..., K); NaN where a difference is not estimable
    df: Floats  # their degrees of freedom, (..., K): the model's where no row stands out
    stand_out: NDArray[np.bool_]  # which rows do, the baseline included, (..., R)
    levels: Floats  # of the F tests by which they do, (R,)
    are_wider: NDArray[np.bool_]  # which errors are larger than the pooled one, (..., K)


def errors(model: TwoWay, values: Floats) -> Errors:
    """Return the errors of the rows' differences in tables (..., R, S); the model has a df."""
    pooled = model.variance(values)[..., None]
    own, df, stand_out = _own(model, values, pooled)
    moderated = (PRIOR_DF * pooled + df * own) / (PRIOR_DF + df)
    variance = np.where(stand_out, np.maximum(moderated, pooled), pooled)  # (..., R)
    freedom = np.where(stand_out, np.minimum(PRIOR_DF + df, model.df), model.df)
    share = 1 / np.maximum(model.observed.sum(axis=1), 1)  # of a row's mean in the variance
    share = share[1:] / (share[1:] + share[0])
    ours, theirs = share * variance[..., 1:], (1 - share) * variance[..., :1]  # (..., K)
    both = ours + theirs
    with np.errstate(divide="ignore", invalid="ignore"):
        satterthwaite = both**2 / (ours**2 / freedom[..., 1:] + theirs**2 / freedom[..., :1])
    wider = stand_out[..., 1:] | stand_out[..., :1]
    return Errors(
        standard=np.sqrt(both * np.diag(model.covariance)),
        df=np.where(wider, np.minimum(satterthwaite, model.df), model.df),
        stand_out=stand_out,
        levels=_levels(df),
        are_wider=wider,
    )


def slack(n_rows: int, df: float) -> float:
    """Return how much of the family's rate of errors the wider intervals would leave unused.

    Where all rows spread alike, rows that stand out by chance have intervals that are wider than
    necessary, and fewer than 1 - level of the tables would be wrong. With all constants taken at
    level ** slack, it is 1 - level of them. The values are simulated for whole tables of K rows by
    ``benchmarks/table_errors.py --slack``. Between them the slack is interpolated linearly in the
    logarithm of K and in 1 over the degrees of freedom of a row; at 0 it is 1.
    """
    of_rows = [np.interp(math.log(n_rows), np.log(ROWS), row) for row in _SLACK]
    shares = [0.0, *(1 / (seeds - 1) for seeds in reversed(SEEDS))]
    return float(np.interp(n_rows / df, shares, [1.0, *reversed(of_rows)]))


def _own(model: TwoWay, values: Floats, pooled: Floats) -> tuple[Floats, Any, Any]:
    """Return the mean square within each row, its degrees of freedom, and whether it stands out."""
    ratios, df = model.departures(values)
    rest, least = model.df - df, np.maximum(df, 1)
    infinite = np.isposinf(ratios)
    known = np.where(np.isfinite(ratios), ratios, 0.0)
    chances = special.fdtrc(least, np.maximum(rest, 1), known)
    # the model's sum of squares is that within the row and that of the rest
    own = pooled * model.df * known / np.maximum(rest + known * df, 1)
    own = np.where(infinite, pooled * model.df / least, own)
    return own, df, infinite | (chances < _levels(df))


def _levels(df: NDArray[np.int64]) -> Floats:
    """Return the levels of the F tests of rows with ``df`` degrees of freedom within each."""
    return STANDING_OUT_LEVEL / np.maximum(df, 1)
