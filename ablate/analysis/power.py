"""What a table can find before it is made: differences, and the seeds that they take.

The rows spread alike, by a standard deviation that earlier runs show. K rows beside the baseline.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from ablate.analysis import spreads
from ablate.analysis.dunnett import BALANCED, Family, smallest_detectable
from ablate.analysis.statistics import LEVEL

MOST_SEEDS = 1000


def detectable(sd: float, n_rows: int, n_seeds: int, level: float = LEVEL) -> float:
    """Return the true difference that is told from 0 with a probability of 80%.

    Args:
        sd: of one run's error.
        n_rows: K.
        n_seeds: of each row, 2 or more.
        level: with which all intervals hold: at the last of several looks, that look's.
    """
    df = n_rows * (n_seeds - 1)
    family = Family((BALANCED,) * n_rows, df, slack=spreads.slack(n_rows, df), level=level)
    critical = family.critical
    assert critical is not None, "there are degrees of freedom"
    return smallest_detectable(sd * math.sqrt(2 / n_seeds), critical, df)


def seeds_for(size: float, sd: float, n_rows: int) -> int | None:
    """Return how many seeds find a difference of a size; None if `MOST_SEEDS` do not."""
    if detectable(sd, n_rows, MOST_SEEDS) > size:
        return None
    return bisect_left(
        range(MOST_SEEDS), True, lo=2, key=lambda n: detectable(sd, n_rows, n) <= size
    )
