"""What a row changes, in as few words as a column of a table has room for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ablate.config.labels import compact
from ablate.config.labels import labels as labels
from ablate.registry import choosable
from ablate.report.cells import NOTHING


def changed_paths(changes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return every path that some row changes, in the order of the rows."""
    return list(dict.fromkeys(path for change in changes for path in change))


def format_value(value: Any, path: str = "") -> str:
    """Write a value of the YAML compactly: ``relu(d_ff=256)``.

    Args:
        value: as the YAML says it.
        path: where the baseline has it; of a part, the options left at their defaults are then
            left out. Without a path the value is written as it is.
    """
    if path and isinstance(value, Mapping) and "name" in value:
        defaults = _defaults(path.split(".")[-1], value["name"])
        value = {k: v for k, v in value.items() if k == "name" or defaults.get(k) != compact(v)}
    return compact(value, NOTHING)


def _defaults(key: str, name: str) -> dict[str, str]:
    entry = choosable(key).get(name)
    if entry is None:
        return {}
    fields = entry.options.model_fields
    return {key: compact(field.default) for key, field in fields.items() if not field.is_required()}
