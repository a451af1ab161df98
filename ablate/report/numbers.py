"""Numbers as people read them: few digits, the same in the whole column, a true minus."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ablate.wording import counted

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"


def number(value: float, decimals: int) -> str:
    """Write ``value`` with ``decimals`` digits after the point."""
    if math.isnan(value):
        return "NaN"
    text = "∞" if math.isinf(value) else f"{abs(value):.{decimals}f}"
    return text if value >= 0 or not text.strip("0.") else MINUS + text


def signed(value: float, decimals: int) -> str:
    """Write a difference: ``+0.31``, ``-1.20`` with a true minus, and ``0.00`` without a sign."""
    text = number(value, decimals)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def percent_change(share: float) -> str:
    """Write a change as a share of what it changed: 0.0262 is ``+2.6%``, 0.0002 ``+0.02%``.

    Returns nothing for no change at all.
    """
    if share == 0:
        return ""
    size = abs(100 * share)
    decimals = 1 if size >= 0.1 else min(2, 1 - math.floor(math.log10(size)))
    text = signed(100 * share, decimals)
    return f"{text}%" if text.strip("0.") else "<0.01%"


def decimals_of(values: Iterable[float]) -> int:
    """Return how many decimals show every one of ``values`` as it was written."""
    decimals = [repr(float(value)).partition(".")[2] for value in values]
    return max((len(text) for text in decimals if text != "0"), default=0)


def of_seeds(n: int, n_seeds: int) -> str:
    """Write ``all seeds``, or how many there are of all: ``1 of 3 seeds``."""
    return "all seeds" if n == n_seeds else f"{n} of {counted(n_seeds, 'seed')}"
