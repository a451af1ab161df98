"""Which values of a measure are better, and what a difference comes to, in one of four words."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from ablate.analysis.statistics import Interval

Direction = Literal["higher", "lower"]

SCORES = ("bleu", "bleu_lc_tok", "chrf", "exact_match")
"""Of dev and test sets, by the last part of their names."""

LOSSES = ("nll", "bits_per_character")
"""Of dev and test sets, by the last part of their names."""

_OTHERS_LOWER = ("perplexity", "best_dev_nll", "train_loss", "final_loss", "seconds")


class Verdict(StrEnum):
    """What a simultaneous interval says of the true difference, of which it holds 95 in 100.

    The probability that any row of a table is wrongly called better or worse is then at most 5%,
    and so is that of ``NO_DIFFERENCE`` where the true difference is beyond the band.
    """

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference"
    CANNOT_TELL = "cannot tell"


def verdict(
    interval: Interval | None, negligible: float, *, higher_is_better: bool = True
) -> Verdict | None:
    """Return the verdict on a row by its simultaneous interval; None without one.

    An interval within the band, 0 ± ``negligible``, is `Verdict.NO_DIFFERENCE` even where it leaves
    out 0: then the difference is there, and known to be smaller than what is called negligible.
    """
    if interval is None:
        return None
    if -negligible < interval.low and interval.high < negligible:
        return Verdict.NO_DIFFERENCE
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
