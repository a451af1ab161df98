"""Packages that are optional: an extra installs each, and an option of a command asks for it."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from types import ModuleType

from ablate.errors import SpecError


def import_extra(module: str, packages: Collection[str], option: str, extra: str) -> ModuleType:
    """Import a module that needs packages of an extra.

    Args:
        module: its full name.
        packages: that the extra installs.
        option: of the command line, which takes the name of the extra as its value.
        extra: its name.

    Raises:
        SpecError: if one of the packages is missing; it says how to install the extra.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise SpecError(
            f"{option} {extra} needs the package {error.name!r}: "
            f"pip install 'ablate-transformer[{extra}]'"
        ) from error
