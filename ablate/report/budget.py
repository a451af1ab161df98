"""Whether the rows had the same to train with: steps, target tokens, floating point operations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ablate.analysis import TRAIN_FLOPS, Summary
from ablate.report.numbers import TIMES, number
from ablate.wording import and_list

STEPS, TOKENS = "train.steps", "train.target_tokens"
BEYOND = "¶"
"""Marks what a row had 5% more or less of than the baseline."""

TOLERANCE = 0.05

MARKED = f"{BEYOND} marks what differs by more than {TOLERANCE:.0%}"
"""Ends the line where a row is marked."""

EQUAL = 1e-3
"""What differs by a smaller share is called equal."""

_NAMES = {STEPS: "steps", TOKENS: "target tokens", TRAIN_FLOPS: "training FLOPs"}


def ratio(row: Summary, baseline: Summary, metric: str) -> float | None:
    """Return how many times as much of a metric a row had as the baseline, if both are known."""
    ours, theirs = row.metrics.get(metric), baseline.metrics.get(metric)
    if ours is None or theirs is None or not theirs.mean:
        return None
    return ours.mean / theirs.mean


def differs(rows: Sequence[Summary], metric: str) -> bool:
    """Return whether rows had more or less of a metric than the baseline."""
    return any(abs(times - 1) > EQUAL for times in _ratios(rows, metric))


def is_beyond(row: Summary, baseline: Summary, metric: str) -> bool:
    """Return whether a row had so much more or less that it is to be marked."""
    times = ratio(row, baseline, metric)
    return times is not None and abs(times - 1) > TOLERANCE


def budget(rows: Sequence[Summary]) -> str:
    """Return one line about what the rows had to train with; nothing if nothing is known."""
    known = [metric for metric in _NAMES if list(_ratios(rows, metric))]
    equal = [_NAMES[metric] for metric in known if not differs(rows, metric)]
    parts = [f"equal {and_list(equal)}"] if equal else []
    for metric in known:
        if differs(rows, metric):
            times = list(_ratios(rows, metric))
            low, high = (number(end, 2) for end in (min(times), max(times)))
            span = low if low == high else f"{low} to {high}"
            parts.append(f"{_NAMES[metric]} {span}{TIMES} the baseline's")
    if any(is_beyond(row, rows[0], metric) for row in rows[1:] for metric in known):
        parts.append(MARKED)
    return "; ".join(parts)


def _ratios(rows: Sequence[Summary], metric: str) -> Iterator[float]:
    for row in rows[1:]:
        times = ratio(row, rows[0], metric)
        if times is not None and math.isfinite(times):
            yield times
