"""Paths and values in as few words as a row's name, or a column of a table, has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def labels(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of dotted ``paths`` that tell them apart."""
    parts = [path.split(".") for path in paths]
    return [_shortest(own, [other for other in parts if other != own]) for own in parts]


def compact(value: Any, null: str = "null") -> str:
    """Write a value of the YAML compactly: ``relu(d_ff=256)``.

    Args:
        value: as the YAML says it.
        null: how None is written.
    """
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(compact(item, null) for item in value)}]"
    if isinstance(value, Mapping):
        return _compact_mapping(value, null)
    return str(value)


def _shortest(own: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    for n in range(1, len(own)):
        if all(other[-n:] != own[-n:] for other in others):
            return ".".join(own[-n:])
    return ".".join(own)


def _compact_mapping(value: Mapping[str, Any], null: str) -> str:
    """Write a choice as its name with its options, and any other mapping as its keys."""
    options = [f"{key}={compact(item, null)}" for key, item in value.items() if key != "name"]
    inner = ", ".join(options)
    if "name" not in value:
        return inner
    name = compact(value["name"], null)
    return f"{name}({inner})" if inner else name
