"""Mutants that compute the same as the original, with the reason; `tests.mutation` skips them."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {
    ("dropout.py", "Sub -> Add: n_dropped - _STEPS // 2"): (
        "the two thresholds differ by 2^16 and are compared as 16-bit integers"
    ),
}
"""By file under ``ablate/parts`` and change."""
