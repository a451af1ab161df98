"""Which values of a measure are better: the higher, or the lower."""

from __future__ import annotations

from typing import Literal

Direction = Literal["higher", "lower"]

SCORES = ("bleu", "bleu_lc_tok", "chrf", "exact_match")
"""Of dev and test sets, by the last part of their names."""

LOSSES = ("nll", "bits_per_character")
"""Of dev and test sets, by the last part of their names."""

_OTHERS_LOWER = ("perplexity", "best_dev_nll", "train_loss", "final_loss", "seconds")


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
