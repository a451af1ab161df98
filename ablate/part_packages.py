"""The packages whose modules register parts when they are imported.

The package itself names them (``ablate/__init__.py``), and the registry imports them before its
first look-up, so that the registry imports no package above it, and ``import ablate`` none at all.
"""

from __future__ import annotations

import importlib

_NAMES: list[str] = []


def add_part_packages(*names: str) -> None:
    """Add packages, by their full names, each of which imports all its modules."""
    _NAMES.extend(names)


def import_part_packages() -> None:
    """Import all packages that have been added."""
    for name in _NAMES:
        importlib.import_module(name)
