"""Every measure of quality of an experiment, compared with the baseline's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ablate.analysis import sentences
from ablate.analysis.comparison import Comparison, Difference, compare
from ablate.analysis.direction import LOSSES, SCORES
from ablate.analysis.dunnett import Family
from ablate.analysis.statistics import Interval
from ablate.analysis.summary import Summary
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

    Args:
        summaries: the rows, baseline first.
        statistics: of each sentence; needed for intervals for new sentences.
        metrics: further scores of test sets, by name.
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
    differences = {
        row: replace(
            each, with_sentences=_interval(each, _paired(row, baseline, influences), compared)
        )
        for row, each in compared.differences.items()
    }
    return replace(compared, differences=differences)


def _paired(row: str, baseline: str, influences: Mapping[tuple[str, int], Floats]) -> Floats | None:
    """Return the differences of the influences (S, I); None if sentences do not correspond."""
    seeds = [seed for name, seed in influences if name == row and (baseline, seed) in influences]
    ours, theirs = ([influences[name, seed] for seed in seeds] for name in (row, baseline))
    if len({len(each) for each in (*ours, *theirs)}) != 1:
        return None
    return sentences.paired_influences(ours, theirs)


def _interval(each: Difference, paired: Floats | None, compared: Comparison) -> Interval | None:
    if paired is None or each.estimate is None or each.standard_error is None or not each.df:
        return None
    if len(paired) != each.n:
        return None  # some seeds have no statistics of sentences
    both = sentences.crossed_error(each.standard_error, each.df, paired)
    constant = _constant(compared.family, each, float(f"{both.df:.3g}"))
    half = constant * both.standard_error
    return Interval.around(each.estimate, half)


def _constant(family: Family, each: Difference, df: float) -> float:
    """Return the constant of the family for an error with other degrees of freedom."""
    if each.method in ("paired", "moderated"):
        return family.critical_separate(df)
    constant = replace(family, df=df).critical
    assert constant is not None, "there is an interval already"
    return constant


def _of_ratio(above: Floats, below: NDArray[np.int64]) -> Floats:
    return sentences.influences(np.stack([above, below], axis=1), sentences.ratio)
