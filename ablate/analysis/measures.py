"""Every measure of quality of an experiment, compared with the baseline's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ablate.analysis import sentences
from ablate.analysis.comparison import Comparison, Difference, compare
from ablate.analysis.statistics import Interval
from ablate.analysis.summary import Summary
from ablate.analysis.verdict import LOSSES, SCORES
from ablate.measuring import SentenceStatistics

Floats = NDArray[np.float64]
Comparisons = Mapping[str, Comparison]
"""By metric."""

Sentences = Mapping[tuple[str, int], Mapping[str, SentenceStatistics]]
"""The statistics of each row and seed, by test set, as far as they are stored."""

_INFLUENCES: dict[str, Callable[[SentenceStatistics], Floats]] = {
    "bleu": lambda stats: sentences.influences(stats.bleu, sentences.bleu),
    "chrf": lambda stats: sentences.influences(stats.chrf, sentences.chrf),
    "nll": lambda stats: _of_ratio(stats.nll, stats.target_tokens),
    "bits_per_character": lambda stats: _of_ratio(stats.nll / np.log(2), stats.characters),
}


def comparisons(
    summaries: Sequence[Summary], statistics: Sentences | None = None, metrics: Sequence[str] = ()
) -> Comparisons:
    """Compare the rows in each score and each loss that some of them have, on dev and test sets.

    Intervals for new sentences need their ``statistics``; ``metrics`` names further scores.
    """
    diverged = {
        each.name: [seed for seed, outcome in each.outcomes.items() if outcome == "diverged"]
        for each in summaries
    }
    scores, by_metric = (*SCORES, *metrics), {}
    for metric in dict.fromkeys(name for each in summaries for name in each.metrics):
        section, *_, kind = metric.split(".")
        if section not in ("dev", "test") or kind not in (*scores, *LOSSES):
            continue
        values = {
            each.name: each.metrics[metric].values if metric in each.metrics else {}
            for each in summaries
        }
        compared = compare(values, diverged, is_score=kind in scores)
        if section == "test" and kind in _INFLUENCES and statistics:
            compared = _with_new_sentences(compared, metric, summaries[0].name, statistics)
        by_metric[metric] = compared
    return by_metric


def _with_new_sentences(
    compared: Comparison, metric: str, baseline: str, statistics: Sentences
) -> Comparison:
    """Add to each row the interval for new sentences too, where their statistics are stored."""
    _, test_set, kind = metric.split(".")
    influences = {
        run: _INFLUENCES[kind](of_sets[test_set])
        for run, of_sets in statistics.items()
        if test_set in of_sets
    }
    differences = {}
    for row, each in compared.differences.items():
        seeds = [
            seed for name, seed in influences if name == row and (baseline, seed) in influences
        ]
        pairs = [(influences[row, seed], influences[baseline, seed]) for seed in seeds]
        # all seeds have them, and sentences correspond
        is_whole = len(pairs) == each.n and len({len(of) for pair in pairs for of in pair}) == 1
        interval = _interval(each, pairs, compared) if is_whole else None
        differences[row] = replace(each, with_sentences=interval)
    return replace(compared, differences=differences)


def _interval(
    each: Difference, pairs: Sequence[tuple[Floats, Floats]], compared: Comparison
) -> Interval | None:
    """Return the interval of a difference, from the influences of both rows by seed."""
    if each.estimate is None or each.standard_error is None or not each.df:
        return None
    paired = np.stack([ours for ours, _ in pairs]) - np.stack([theirs for _, theirs in pairs])
    error, df = sentences.crossed_error(each.standard_error, each.df, paired)
    df = float(f"{df:.3g}")
    constant = replace(compared.family, df=df).critical
    if each.method in ("paired", "moderated"):
        constant = compared.family.critical_separate(df)
    assert constant is not None, "there is an interval already"
    return Interval.around(each.estimate, constant * error)


def _of_ratio(above: Floats, below: NDArray[np.int64]) -> Floats:
    return sentences.influences(np.stack([above, below], axis=1), sentences.ratio)
