"""Parts and plugins that are registered for the time of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ablate.registry.plugins import _restore, _snapshot, filled_table


@contextmanager
def temporary_registrations() -> Iterator[None]:
    """Remove on leaving the parts that were registered, and the plugins loaded, within."""
    filled_table()
    before = _snapshot()
    try:
        yield
    finally:
        _restore(before)
