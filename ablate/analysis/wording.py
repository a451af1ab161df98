"""Numbers and lists in the sentences of gates and footnotes."""

from __future__ import annotations

import math
from collections.abc import Iterable

_MOST_DECIMALS = 6


def decimals(scale: float) -> int:
    """Return how many decimals show three digits of a number of this size."""
    if scale == 0 or not math.isfinite(scale):
        return _MOST_DECIMALS
    return max(0, min(_MOST_DECIMALS, 2 - math.floor(math.log10(abs(scale)))))


def number(value: float, scale: float, sign: str = "") -> str:
    """Write a number with as many decimals as its comparison needs.

    Args:
        value: the number.
        scale: the size of what it is compared with; 0 if both must be equal.
        sign: ``+`` for a difference, so that a positive one has a plus.
    """
    return f"{value:{sign}.10g}" if scale == 0 else f"{value:{sign}.{decimals(scale)}f}"


def percent(share: float) -> str:
    """Write a share with two digits: 0.001 is ``0.1%``, 0.00003 is ``0.003%``."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.4g}%"


def listed(items: Iterable[object]) -> str:
    """Write ``1, 2, 3``."""
    return ", ".join(str(item) for item in items)


def seeds_named(seeds: Iterable[int]) -> str:
    """Write ``seed 1`` or ``seeds 1, 2, 3``."""
    numbers = list(seeds)
    return f"{'seed' if len(numbers) == 1 else 'seeds'} {listed(numbers)}"
