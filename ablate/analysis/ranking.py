"""Tables of many rows: false discovery rate and selection bias (the winner's curse)."""

from __future__ import annotations

import numpy as np
from scipy import special

from ablate.analysis.comparison import Comparison, Values

FALSE_SHARE = 0.05
"""The false discovery rate of `discoveries`."""

_FEWEST_SEEDS = 3


def discoveries(compared: Comparison) -> list[str]:
    """Return the rows that differ from the baseline by Benjamini and Hochberg's procedure (1995).

    `FALSE_SHARE` of these rows are expected to be false discoveries. Simultaneous intervals promise
    more: with a probability of 95% there is no false one at all.
    """
    p_values = {}
    for row, each in compared.differences.items():
        if each.estimate is None or each.standard_error is None or not each.df:
            continue
        error = max(each.standard_error, 1e-300)
        p_values[row] = 2 * float(special.stdtr(each.df, -abs(each.estimate) / error))
    ordered = sorted(p_values, key=lambda row: p_values[row])
    passing = [
        rank
        for rank, row in enumerate(ordered, start=1)
        if p_values[row] <= FALSE_SHARE * rank / len(ordered)
    ]
    return ordered[: max(passing, default=0)]


def selection_bias(values: Values, n_best: int) -> float | None:
    """Return the bias of the differences of the best rows in a score, leaving out each seed once.

    The ``n_best`` rows with the largest mean over all seeds but one are selected; the bias is that
    mean less their difference in the seed left out, averaged over seeds. None if there are fewer
    than three seeds, or if fewer than two rows have all of them.
    """
    baseline, *others = values
    seeds = sorted(values[baseline])
    whole = [row for row in others if values[row].keys() >= set(seeds)]
    if len(seeds) < _FEWEST_SEEDS or len(whole) < 2 or not 0 < n_best <= len(whole):
        return None
    table = np.array(
        [[values[row][seed] - values[baseline][seed] for seed in seeds] for row in whole]
    )
    if not np.isfinite(table).all():
        return None
    biases = []
    for left_out in range(len(seeds)):
        of_others = np.delete(table, left_out, axis=1).mean(axis=1)
        best = np.argsort(of_others, kind="stable")[-n_best:]
        biases.append(float((of_others - table[:, left_out])[best].mean()))
    return float(np.mean(biases))
