"""What a row changes, in as few words as a column of a table has room for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.config import BASELINE, Row, value_at
from ablate.config.labels import compact
from ablate.config.labels import labels as labels
from ablate.config.merge import excluded_by
from ablate.registry import choosable
from ablate.report.cells import NOTHING, Cell


def changed_paths(changes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return every path that some row changes, in the order of the rows."""
    return list(dict.fromkeys(path for change in changes for path in change))


def shown_paths(rows: Sequence[Row]) -> list[str]:
    """Return every path that some row changes, and what the baseline has in place of it.

    Of keys that exclude each other, such as ``last`` and ``ema`` of ``training.average``, a row
    that gives one loses that of the baseline, which would otherwise stand nowhere.
    """
    baseline = rows[0].spec.model_dump(mode="json")
    paths = changed_paths(row.changes for row in rows)
    others = [other for path in paths for other in excluded_by(path)]
    return list(dict.fromkeys([*paths, *(o for o in others if value_at(baseline, o) is not None)]))


def change_cells(rows: Sequence[Row], path: str) -> list[Cell]:
    """Return what each row has at a path: the file's value, or one that was chosen for it.

    A row that does not change the path has an empty cell, unless it has another part than the
    baseline and with it another value of this option, or no such option: a dash. One whose value is
    still to be chosen has a question mark, one with another key in place of the path a dash.
    """
    baseline = value_at(rows[0].spec.model_dump(mode="json"), path)
    return [_change_cell(row, path, baseline) for row in rows]


def _change_cell(row: Row, path: str, baseline: Any) -> Cell:
    if path in row.pending:
        return Cell("?")
    if row.name == BASELINE:
        return Cell(format_value(baseline, path), row.chosen.get(path, ""))
    if not row.changes.keys().isdisjoint(excluded_by(path)):
        return Cell(NOTHING)
    if path in row.changes:
        return Cell(format_value(row.changes[path]), row.chosen.get(path, ""))
    if any(path.startswith(f"{change.removesuffix('.name')}.") for change in row.changes):
        value = value_at(row.spec.model_dump(mode="json"), path)
        return Cell() if value == baseline else Cell(format_value(value, path))
    return Cell()


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
