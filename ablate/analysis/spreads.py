"""Rows whose runs spread more than those of the other rows, but not so much as to leave their pool.

With a few seeds the spread of one row is hardly known, and the pooled error of a table is the best
guess at it; but where the spreads of rows do differ, the pooled error is too small for the rows of
large spread, and they make most of a table's false differences. So a row whose mean square within
stands out from the rest of the table has a variance between its own and the pooled one,

    (prior pooled² + df own²) / (prior + df)    with prior + df degrees of freedom,

as in Smyth 2004, "Linear models and empirical Bayes methods", eq. 1, with a fixed prior. The error
of its difference from the baseline has Satterthwaite's (1946) degrees of freedom. The pooled error
itself keeps the row, so that the other rows' intervals are as they would be without the test.

R rows, the baseline first; K = R - 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablate.analysis.two_way import TwoWay

Floats = NDArray[np.float64]

STANDING_OUT = 0.3
"""A row stands out at this level over the degrees of freedom within it, by an F test.

So where all spread alike, 15% of rows do with 3 seeds and 7.5% with 5, at the price of a little
power (docs/statistics.md). With few seeds a spread is hardly seen and the level must be high for
tables of 25 rows to be as true as is promised; with more seeds a lower one is enough.
"""

PRIOR = 4.0
"""How many degrees of freedom the pooled variance is worth as a guess at that of one row.

If the logarithms of the rows' standard deviations differ by 0.40, as those of measured rows do at
most, the logarithms of the variances differ by 0.80, whose square is trigamma(4 / 2).
"""


@dataclass(frozen=True)
class Errors:
    """The errors of estimated differences of one or more tables.

    Attributes:
        standard: standard errors, (..., K); NaN where a difference is not estimable.
        df: their degrees of freedom, (..., K): the model's where no row stands out.
        stand_out: which rows stand out, the baseline included, (..., R).
    """

    standard: Floats
    df: Floats
    stand_out: NDArray[np.bool_]

    @property
    def are_wider(self) -> NDArray[np.bool_]:
        """Which differences have an error larger than the pooled one, (..., K)."""
        wider: NDArray[np.bool_] = self.stand_out[..., 1:] | self.stand_out[..., :1]
        return wider


def errors(model: TwoWay, values: Floats) -> Errors:
    """Return the errors of the rows' differences from the baseline.

    Args:
        model: with degrees of freedom.
        values: of one or more tables, (..., R, S).
    """
    pooled = model.variance(values)[..., None]
    own, df, stand_out = _own(model, values, pooled)
    variance = np.where(stand_out, (PRIOR * pooled + df * own) / (PRIOR + df), pooled)  # (..., R)
    freedom = np.where(stand_out, np.minimum(PRIOR + df, model.df), model.df)
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
    )


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
    return own, df, infinite | (chances < STANDING_OUT / least)
