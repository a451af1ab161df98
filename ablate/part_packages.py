"""The packages whose modules register parts when they are imported.

The package itself names them (``ablate/__init__.py``), and the registry imports them before its
first look-up: so the registry knows no package above it, and ``import ablate`` loads none of them.
"""

from __future__ import annotations

import importlib

_NAMES: list[str] = []


def add_part_packages(*names: str) -> None:
    """Note packages, by their full names, each of which imports all its modules."""
    _NAMES.extend(names)


def import_part_packages() -> None:
    """Import all packages that have been noted."""
    for name in _NAMES:
        importlib.import_module(name)
