"""Lists in sentences."""

from __future__ import annotations

from collections.abc import Iterable


def listed(items: Iterable[object]) -> str:
    """Write ``1, 2, 3``."""
    return ", ".join(str(item) for item in items)
