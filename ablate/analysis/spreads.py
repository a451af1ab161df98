"""The error of every row's difference, where rows do not spread over seeds alike.

With few seeds the spread of one row is hardly known, and the pooled error of a table is its best
estimate. Where the spreads of rows differ, however, the pooled error is too small for rows of large
spread, which then cause most of a table's false differences. So every row has a variance between
its own and the pooled one,

    (prior pooled² + df own²) / (prior + df)    with prior + df degrees of freedom,

as in Smyth 2004, "Linear models and empirical Bayes methods", eq. 1. How much the pooled variance
counts follows from how far the spreads of the table lie apart, of which a guess takes part, since
few rows hardly show it. The baseline, which is in every difference, counts for more by itself: its
prior is half of its own degrees of freedom. The error of a difference has Satterthwaite's (1946).

The constants of a table are taken so (`slack`) that at most 5% of the tables whose rows spread
alike have a false difference, and at most 6.5% where the spreads lie apart, the baseline spreads
twice as much as the others, or the other rows share half of the variance of their errors.

R rows, the baseline first; K = R - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablate.analysis.two_way import Floats, TwoWay

# A guess at the variance of the logarithms of the rows' variances, and how many rows it counts as.
# Spreads whose logarithms lie 0.25 and 0.41 apart, as measured, have 4 x 0.25² = 0.25 and 0.67.
LOG_VARIANCE, N_GUESSED = 0.5, 10
PRIOR_OF_BASELINE = 0.5  # over the baseline's own degrees of freedom

_LEAST = 1e-3  # variance of logarithms: at it the pooled variance counts as 2,000 degrees
_N_STEPS = 5  # of Newton's method, to the last digits

SEEDS = (2, 3, 4, 5, 7, 10)
ROWS = (1, 2, 3, 4, 6, 10, 15, 25, 50, 110, 200)
_SLACK = (
    (1.00, 0.95, 0.78, 0.68, 0.58, 0.55, 0.62, 0.70, 0.83, 0.99, 1.05),  # 2 seeds
    (1.00, 0.94, 0.73, 0.66, 0.68, 0.82, 0.92, 1.03, 1.17, 1.27, 1.33),  # 3 seeds
    (1.00, 0.94, 0.77, 0.73, 0.83, 0.96, 1.08, 1.13, 1.21, 1.23, 1.24),  # 4 seeds
    (1.00, 0.94, 0.79, 0.79, 0.90, 1.08, 1.15, 1.19, 1.19, 1.17, 1.14),  # 5 seeds
    (1.00, 0.95, 0.84, 0.88, 0.97, 1.13, 1.22, 1.23, 1.19, 1.13, 1.08),  # 7 seeds
    (1.00, 0.94, 0.91, 0.95, 1.03, 1.12, 1.17, 1.26, 1.19, 1.16, 1.08),  # 10 seeds
)


@dataclass(frozen=True)
class Errors:
    """The errors of estimated differences of one or more tables."""

    standard: Floats  # standard errors, (..., K); NaN where a difference is not estimable
    df: Floats  # their degrees of freedom, (..., K), no more than those of the model


def errors(model: TwoWay, values: Floats) -> Errors:
    """Return the errors of the rows' differences in tables (..., R, S); the model has a df."""
    pooled = model.variance(values)[..., None]
    own, df = _own(model, values, pooled)
    prior = np.broadcast_to(prior_df(own / np.where(pooled > 0, pooled, 1.0), df), own.shape).copy()
    prior[..., 0] = PRIOR_OF_BASELINE * df[0]
    weight = np.maximum(prior + df, 1e-9)
    variance = np.where(df > 0, (prior * pooled + df * own) / weight, pooled)  # (..., R)
    freedom = np.where(df > 0, np.minimum(weight, model.df), model.df)
    share = 1 / np.maximum(model.observed.sum(axis=1), 1)  # of a row's mean in the variance
    share = share[1:] / (share[1:] + share[0])
    ours, theirs = share * variance[..., 1:], (1 - share) * variance[..., :1]  # (..., K)
    both = ours + theirs
    with np.errstate(divide="ignore", invalid="ignore"):
        satterthwaite = both**2 / (ours**2 / freedom[..., 1:] + theirs**2 / freedom[..., :1])
    return Errors(
        standard=np.sqrt(both * np.diag(model.covariance)),
        df=np.where(both > 0, np.minimum(satterthwaite, model.df), model.df),
    )


def slack(n_rows: int, df: float) -> float:
    """Return the power of the level at which the constants of a table are taken.

    It is above 1 where the moderated errors alone would leave a table fewer false differences than
    promised, and below 1 where they would leave it more. The values are simulated for whole tables
    of K rows by ``benchmarks/table_errors.py --slack``. Between them the slack is interpolated
    linearly in the logarithm of K and in 1 over the degrees of freedom of a row; at 0 it is 1.
    """
    of_rows = [np.interp(math.log(n_rows), np.log(ROWS), row) for row in _SLACK]
    shares = [0.0, *(1 / (seeds - 1) for seeds in reversed(SEEDS))]
    return float(np.interp(n_rows / df, shares, [1.0, *reversed(of_rows)]))


def _own(model: TwoWay, values: Floats, pooled: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the mean square within each row (..., R), and its degrees of freedom (R,).

    These are 0 where nothing is left to compare a row with: for each of two rows, and a row of one
    run.
    """
    ratios, df = model.departures(values)
    rest = model.df - df
    df = np.where((df > 0) & (rest > 0), df, 0)
    infinite, least = np.isposinf(ratios), np.maximum(df, 1)
    known = np.where(np.isfinite(ratios), ratios, 0.0)
    # the model's sum of squares is that within the row and that of the rest
    own = pooled * model.df * known / np.maximum(rest + known * df, 1)
    return np.where(infinite, pooled * model.df / least, own), df


def prior_df(ratios: Floats, df: NDArray[Any]) -> Floats:
    """Return the degrees of freedom that the pooled variance counts as in each table, (..., 1).

    ``ratios`` (..., R) are those of the rows' variances to the pooled one. If the variances had no
    error, the mean of their squares would be exp(v), v being the variance of their logarithms; with
    ``df`` degrees of freedom it is 1 + 2 / df times as large.
    """
    known = df > 0
    if not known.any():
        return np.zeros((*ratios.shape[:-1], 1))
    squares = (ratios[..., known] ** 2 / (1 + 2 / df[known])).mean(axis=-1, keepdims=True)
    n = known.sum() - 1
    seen = np.log(np.maximum(squares, _LEAST))
    apart = (N_GUESSED * LOG_VARIANCE + n * seen) / (N_GUESSED + n)
    return 2 * _inverse_trigamma(np.maximum(apart, _LEAST))


def _inverse_trigamma(y: Any) -> Any:
    """Return x > 0 whose trigamma function is y, by Newton's method (Smyth 2004, appendix)."""
    x = 0.5 + 1 / y
    for _ in range(_N_STEPS):
        of_x = special.polygamma(1, x)
        x = x + of_x * (1 - of_x / y) / special.polygamma(2, x)
    return x
