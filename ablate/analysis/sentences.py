"""What new test sentences would change, from the statistics of every sentence.

All rows and seeds translate the same sentences, so that seeds and sentences are crossed. With D the
difference of two rows, S seeds, A the mean over seeds of the variance of a seed's difference over
draws of sentences, and B that of the difference of the means over seeds: what all seeds owe to the
sentences has the variance B - (A - B) / (S - 1), and a new draw of seeds and sentences has

    V = s² / S + max(0, B - (A - B) / (S - 1)),

s² being the variance of D over seeds. A and B are jackknife estimates (Efron and Tibshirani 1993,
"An Introduction to the Bootstrap", ch. 11): a score's sensitivity to each sentence comes from
leaving it out.

I sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Score = Callable[[Floats], Floats]
"""From sums over sentences (..., C) to a score of the corpus (...)."""

_BLEU_ORDERS = 4
_CHRF_WEIGHT = 4.0  # beta²: recall counts twice as much as precision


def bleu(sums: Floats) -> Floats:
    """Return sacreBLEU's corpus BLEU, with its exponential smoothing, from sums (..., 10).

    These are the tokens of the translations and of the references, matching n-grams of the orders 1
    to 4, and all n-grams of the translations of these orders.
    """
    n_ours, n_theirs = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + _BLEU_ORDERS], sums[..., 2 + _BLEU_ORDERS :]
    n_zeros = np.cumsum(correct == 0, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(correct > 0, correct, 0.5**n_zeros) / total
        brevity = np.minimum(0.0, 1 - n_theirs / n_ours)
        score = 100 * np.exp(brevity + np.log(precision).mean(axis=-1))
    is_scored = (correct > 0).any(axis=-1) & (total > 0).all(axis=-1)
    return np.where(is_scored, score, 0.0)


def chrf(sums: Floats) -> Floats:
    """Return sacreBLEU's corpus chrF2 (Popović 2015) from sums (..., 18).

    Of the character n-grams of each order 1 to 6: those of the translations, of the references, and
    those that match.
    """
    ours, theirs, matches = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    has_both = (ours > 0) & (theirs > 0)
    n_orders = np.maximum(has_both.sum(axis=-1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(has_both, matches / ours, 0.0).sum(axis=-1) / n_orders
        recall = np.where(has_both, matches / theirs, 0.0).sum(axis=-1) / n_orders
        score = (1 + _CHRF_WEIGHT) * precision * recall / (_CHRF_WEIGHT * precision + recall)
    return np.where(precision + recall > 0, 100 * score, 0.0)


def ratio(sums: Floats) -> Floats:
    """Return the first of two sums over the second: of NLL and tokens, the NLL per token."""
    return sums[..., 0] / sums[..., 1]


def influences(statistics: NDArray[Any], score: Score) -> Floats:
    """Return how much each sentence moves a score of the corpus, (I,), by leaving it out.

    Their mean is 0; their variance over I is the jackknife variance of the score. The statistics
    are (I, C); the score is one of their sum.
    """
    statistics = statistics.astype(np.float64)
    n = len(statistics)
    without = score(statistics.sum(axis=0) - statistics)  # (I,)
    return (n - 1) * (without.mean() - without)


def crossed_error(standard_error: float, df: float, differences: Floats) -> tuple[float, float]:
    """Add new sentences to the error s / sqrt(S) that a difference has over seeds.

    The differences are those of the influences of two rows, (S, I). Returns the root of V and its
    degrees of freedom (Satterthwaite 1946, "An approximate distribution of estimates of variance
    components").
    """
    n_seeds, n_sentences = differences.shape
    each = float(differences.var(axis=1, ddof=1).mean() / n_sentences)  # A
    mean = float(differences.mean(axis=0).var(ddof=1) / n_sentences)  # B
    shared = max(0.0, mean - (each - mean) / (n_seeds - 1)) if n_seeds > 1 else mean
    total = standard_error**2 + shared
    if shared == 0 or n_seeds < 2:
        return total**0.5, df
    parts = mean * n_seeds / (n_seeds - 1), each / (n_seeds - 1)  # shared is their difference
    noise = standard_error**4 / df + sum(part**2 for part in parts) / (n_sentences - 1)
    # below 1 where the difference of the two parts is lost in their noise: no T has so few
    return total**0.5, max(1.0, total**2 / noise)
