"""What a row changes, in as few words as a column of a table has room for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.registry import slots
from ablate.report.cells import NOTHING


def changed_paths(changes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return every path that some row changes, in the order of the rows."""
    return list(dict.fromkeys(path for change in changes for path in change))


def labels(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of dotted ``paths`` that tell them apart."""
    parts = [path.split(".") for path in paths]
    return [_shortest(own, [other for other in parts if other != own]) for own in parts]


def format_value(value: Any, path: str = "") -> str:
    """Write a value of the YAML compactly: ``relu(d_ff=256)``.

    Args:
        value: as the YAML says it.
        path: where the baseline has it; of a part, the options left at their defaults are then
            left out. Without a path the value is written as it is.
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return _format_choice(value, path)
    return str(value)


def _shortest(own: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    for n in range(1, len(own)):
        if all(list(other[-n:]) != list(own[-n:]) for other in others):
            return ".".join(own[-n:])
    return ".".join(own)


def _format_choice(value: Mapping[str, Any], path: str) -> str:
    options = {key: option for key, option in value.items() if key != "name"}
    if path and "name" in value:
        defaults = _defaults(path.split(".")[-1], value["name"])
        options = {k: v for k, v in options.items() if defaults.get(k) != format_value(v)}
    inner = ", ".join(f"{key}={format_value(option)}" for key, option in options.items())
    if "name" not in value:
        return inner
    return f"{value['name']}({inner})" if inner else str(value["name"])


def _defaults(slot: str, name: str) -> dict[str, str]:
    entry = slots().get("attention" if slot == "cross_attention" else slot, {}).get(name)
    if entry is None:
        return {}
    fields = entry.options.model_fields
    return {
        key: format_value(field.default) for key, field in fields.items() if not field.is_required()
    }
