"""What goes with the next major version: it still works, and a warning says what takes its place.

To deprecate something, enter it into `DEPRECATED` and keep it working; nothing else is needed for
keys, parts, options of parts and options of commands. What Python calls calls `warn_if_deprecated`.
"""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping
from dataclasses import dataclass

from ablate.errors import DeprecatedWarning
from ablate.version import __version__


@dataclass(frozen=True)
class Deprecation:
    """Since which version something is deprecated, and what to write in its place."""

    since: str
    instead: str


DEPRECATED: MutableMapping[str, Deprecation] = {}
"""By what a user writes: ``training.key``, ``norm: part``, ``norm: part.option``,
``ablate run --option``, ``ablate.api.name``."""


def warn_if_deprecated(what: str, at: str = "") -> None:
    """Warn if something that a user wrote is deprecated; ``at`` is where, as file:line:column."""
    if entry := DEPRECATED.get(what):
        major = int(__version__.partition(".")[0])
        text = f"{what} is deprecated since {entry.since} and goes with {major + 1}.0"
        where = f"{at}: " if at else ""
        warnings.warn(f"{where}{text}: {entry.instead}", DeprecatedWarning, stacklevel=3)
