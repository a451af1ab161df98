"""Numbers in the sentences of a gate: as many digits as a comparison needs."""

from __future__ import annotations

import math

_MOST_DECIMALS = 6


def to_scale(value: float, scale: float, sign: str = "") -> str:
    """Write a number with as many decimals as its comparison needs.

    Args:
        value: the number.
        scale: the size of what it is compared with; 0 if both must be equal.
        sign: ``+`` for a difference, so that a positive one has a plus.
    """
    if scale == 0:
        return f"{value:{sign}.10g}"
    decimals = _MOST_DECIMALS
    if math.isfinite(scale):  # three digits of a number of this size
        decimals = max(0, min(decimals, 2 - math.floor(math.log10(abs(scale)))))
    return f"{value:{sign}.{decimals}f}"


def percentage(share: float) -> str:
    """Write a share with two digits: 0.001 is ``0.1%``, 0.00003 is ``0.003%``."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.4g}%"
