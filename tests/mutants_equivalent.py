"""Mutants that compute the same as the original, with the reason; `tests.mutation` skips them."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {}
"""By file under ``ablate/parts`` and change."""
