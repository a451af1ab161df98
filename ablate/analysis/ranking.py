"""Tables of many rows: which would be told by another promise, and how lucky the best ones are."""

from __future__ import annotations

import numpy as np
from scipy import special

from ablate.analysis.comparison import Comparison, Values

FALSE_SHARE = 0.05
"""The expected share of false ones among the rows of `discoveries`."""

_FEWEST_SEEDS = 3


def discoveries(compared: Comparison) -> list[str]:
    """Return the rows that differ from the baseline by Benjamini and Hochberg's procedure (1995).

    Of these rows, `FALSE_SHARE` are expected to be false; of those that are told by simultaneous
    intervals, any at all is with a probability of 5%.
    """
    p_values = {}
    for row, each in compared.differences.items():
        if each.estimate is None or each.standard_error is None or not each.df:
            continue
        error = max(each.standard_error, 1e-300)
        p_values[row] = 2 * float(special.stdtr(each.df, -abs(each.estimate) / error))
    ordered = sorted(p_values, key=lambda row: p_values[row])
    told = [
        rank
        for rank, row in enumerate(ordered, start=1)
        if p_values[row] <= FALSE_SHARE * rank / len(ordered)
    ]
    return ordered[: max(told, default=0)]


def luck(values: Values, n_best: int, *, higher_is_better: bool = True) -> float | None:
    """Return by how much the best rows are worse with a seed that did not choose them.

    The ``n_best`` rows with the largest mean over all seeds but one are compared with themselves in
    that seed; the mean over seeds is what choosing the best adds to their differences (the winner's
    curse), for one seed less than there are. None with too few seeds, or if rows lack some.
    """
    baseline, *others = values
    seeds = sorted(values[baseline])
    whole = [row for row in others if values[row].keys() >= set(seeds)]
    if len(seeds) < _FEWEST_SEEDS or len(whole) < 2 or not 0 < n_best <= len(whole):
        return None
    table = np.array(
        [[values[row][seed] - values[baseline][seed] for seed in seeds] for row in whole]
    )
    table = table if higher_is_better else -table
    if not np.isfinite(table).all():
        return None
    lost = []
    for left_out in range(len(seeds)):
        of_others = np.delete(table, left_out, axis=1).mean(axis=1)
        best = np.argsort(of_others, kind="stable")[-n_best:]
        lost.append(float((of_others - table[:, left_out])[best].mean()))
    return float(np.mean(lost))
