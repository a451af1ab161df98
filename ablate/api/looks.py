"""The interim looks at an experiment: ``<results>/<experiment>/looks.json``.

Adding seeds until a difference is significant raises the rate of false differences. So a table
reports the looks, at fewer seeds, that came before it (docs/statistics.md).
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from ablate.api.selection import Selection
from ablate.report import Table
from ablate.store import write_whole

Looks = list[list[int]]
"""The seeds of every table with verdicts, in ascending order, the first table first."""

_LOOKS = TypeAdapter(Looks)


def earlier_looks(selection: Selection, results: Path) -> Looks:
    """Return the looks with some of the seeds of a selection; none of runs under overrides."""
    seeds = set(selection.experiment.seeds)
    known = [] if selection.overrides else _read(_file(selection, results))
    return [look for look in known if set(look) < seeds]


def note_look(selection: Selection, table: Table, results: Path) -> None:
    """Note the seeds of a table with verdicts."""
    assert table.results is not None, "it is the table of runs"
    compared = table.results.comparison(table.results.bleu)
    is_judged = compared and any(each.simultaneous for each in compared.differences.values())
    file, seeds = _file(selection, results), sorted(selection.experiment.seeds)
    known = _read(file)
    if is_judged and not selection.overrides and seeds not in known:
        write_whole(file, json.dumps([*known, seeds]) + "\n")


def _file(selection: Selection, results: Path) -> Path:
    return results / selection.experiment.name / "looks.json"


def _read(file: Path) -> Looks:
    with suppress(OSError, ValueError):
        return _LOOKS.validate_json(file.read_bytes())
    return []
