"""Measures of quality: which values are better, and every row compared with the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ablate.analysis import sentences
from ablate.analysis.comparison import ONE_TABLE, Comparison, Promise, compare
from ablate.analysis.statistics import Interval
from ablate.analysis.summary import Summary, trained_by
from ablate.measuring import SentenceStatistics

SCORES = ("bleu", "bleu_lc_tok", "chrf", "exact_match")
LOSSES = ("nll", "bits_per_character")
"""Of dev and test sets, by the last part of their names."""

PER_TOKEN = ("nll", "perplexity", "best_dev_nll", "train_loss", "final_loss")
"""Losses that are not compared between tokenizers, by the last part of their names."""

FLOOR = 2
"""Times what is negligible: a baseline with a lower score has too little to lose."""

_OTHERS_LOWER = ("perplexity", "best_dev_nll", "train_loss", "final_loss", "seconds")

Direction = Literal["higher", "lower"]
Floats = NDArray[np.float64]
Comparisons = Mapping[str, Comparison]  # by metric
Sentences = Mapping[tuple[str, int], Mapping[str, SentenceStatistics]]  # by row, seed and test set

_INFLUENCES: dict[str, Callable[[SentenceStatistics], Floats]] = {
    "bleu": lambda stats: sentences.influences(stats.bleu, sentences.bleu),
    "chrf": lambda stats: sentences.influences(stats.chrf, sentences.chrf),
    "nll": lambda stats: _of_ratio(stats.nll, stats.target_tokens),
    "bits_per_character": lambda stats: _of_ratio(stats.nll / np.log(2), stats.characters),
}


class Verdict(StrEnum):
    """What a simultaneous interval says of the true difference, of which it holds 95 in 100.

    The probability that any row of a table is wrongly called better or worse is then at most 5%,
    and so is that of ``NO_DIFFERENCE`` where the true difference is beyond the band. ``SAME`` is
    said of rows that have the baseline's weights and values to the last bit. Where the baseline has
    not learned enough to lose anything, ``NO_DIFFERENCE`` is not said.
    """

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference"
    CANNOT_TELL = "cannot tell"
    SAME = "same as the baseline"


def verdict(
    interval: Interval | None,
    negligible: float,
    *,
    higher_is_better: bool = True,
    baseline: float | None = None,
) -> Verdict | None:
    """Return the verdict by a simultaneous interval; one within the band is no difference.

    ``baseline`` is its mean score; below `FLOOR` times the band, none is.
    """
    if interval is None:
        return None
    if -negligible < interval.low and interval.high < negligible:
        is_at_floor = baseline is not None and baseline < FLOOR * negligible
        return Verdict.CANNOT_TELL if is_at_floor else Verdict.NO_DIFFERENCE
    if interval.low > 0:
        return Verdict.BETTER if higher_is_better else Verdict.WORSE
    if interval.high < 0:
        return Verdict.WORSE if higher_is_better else Verdict.BETTER
    return Verdict.CANNOT_TELL


def direction(measure: str) -> Direction | None:
    """Return which values of a measure are better, if that is known."""
    section, last = measure.partition(".")[0], measure.rpartition(".")[2]
    if last in SCORES:
        return "higher"
    if last in (*LOSSES, *_OTHERS_LOWER) or section in ("params", "flops"):
        return "lower"
    return None


def higher_is_better(metric: str) -> bool:
    """Return whether a difference above 0 is a gain; of a metric that is not known, it is."""
    return direction(metric) != "lower"


def comparisons(
    summaries: Sequence[Summary],
    statistics: Sentences | None = None,
    metrics: Sequence[str] = (),
    *,
    promise: Promise = ONE_TABLE,
) -> Comparisons:
    """Compare the rows in each score and loss of dev and test sets; ``metrics`` are more scores.

    ``promise`` is that of `compare`.
    """
    diverged = {each.name: each.seeds_with("diverged") for each in summaries}
    scores, by_metric, sharing = (*SCORES, *metrics), {}, trained_by(summaries)
    for metric in dict.fromkeys(name for each in summaries for name in each.metrics):
        section, *_, kind = metric.split(".")
        if section not in ("dev", "test") or kind not in (*scores, *LOSSES):
            continue
        values = {
            each.name: each.metrics[metric].values if metric in each.metrics else {}
            for each in summaries
        }
        compared = compare(
            values,
            diverged,
            is_score=kind in scores,
            trained_by=sharing,
            promise=promise,
        )
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
        if test_set in of_sets and len(of_sets[test_set].nll) > 1
    }
    differences = {}
    for row, each in compared.differences.items():
        seeds = [
            seed for name, seed in influences if name == row and (baseline, seed) in influences
        ]
        pairs = [(influences[row, seed], influences[baseline, seed]) for seed in seeds]
        # all seeds have them, and sentences correspond
        is_whole = len(pairs) == each.n and len({len(of) for pair in pairs for of in pair}) == 1
        interval = None
        if is_whole and each.estimate is not None and each.standard_error is not None and each.df:
            paired = np.stack([ours - theirs for ours, theirs in pairs])
            error, df = sentences.crossed_error(each.standard_error, each.df, paired)
            interval = Interval.around(each.estimate, compared.family.critical_of(df) * error)
        differences[row] = replace(each, with_sentences=interval)
    return replace(compared, differences=differences)


def _of_ratio(above: Floats, below: NDArray[np.int64]) -> Floats:
    return sentences.influences(np.stack([above, below], axis=1), sentences.ratio)
