"""The table for other programs: every number in full, under the name it has in a record."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from typing import Any

from ablate.analysis import LEVEL, STATUSES, Estimate, Interval, Rounds, is_measured_once
from ablate.report.cells import Line, Table
from ablate.report.changes import changed_paths


def comma_separated(table: Table) -> str:
    """Write one line per row, under a line of headers.

    The columns are ``row``, ``change.<path>`` (as JSON), ``runs.<status>``, then for every metric
    ``<metric>.mean``, ``.sd`` and ``.n``, and of its paired difference from the baseline
    ``<metric>.difference.mean``, ``.sd``, ``.n`` and the ends ``.low`` and ``.high`` of Student's
    95% interval. Speed and memory, which are measured once for all seeds, have the ``.mean`` alone;
    a speed that was measured by turns also has ``<metric>.rounds.median``, ``.sd`` and ``.n``, over
    rounds, and the same of its ``.ratio`` to the baseline's.
    Last come ``published.<measure>``, and the source and note of these in ``published.source`` and
    ``published.note``. What is not known is empty.
    """
    rows = [_row(table, line) for line in table.lines]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_text(table: Table) -> str:
    """Write everything that the table was made from, each value with its seed.

    A number that JSON does not have (NaN, infinity) is null. Of a difference, ``student`` is the
    interval in the other formats; ``bootstrap`` resamples the seeds and is too short for few. Of
    speed and memory, which all seeds share, ``sd`` is null.
    """
    content = {
        "experiment": table.name,
        "question": table.question,
        "seeds": list(table.seeds),
        "level": LEVEL,
        "published": _source(table),
        "rows": [_object(table, line, is_baseline=at == 0) for at, line in enumerate(table.lines)],
        "footnotes": [{"label": note.label, "text": note.text} for note in table.footnotes],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _row(table: Table, line: Line) -> dict[str, Any]:
    summary = line.summary
    row: dict[str, Any] = {"row": summary.name}
    for path in changed_paths(each.changes for each in table.lines):
        has_it = path in line.changes
        row[f"change.{path}"] = json.dumps(line.changes[path]) if has_it else None
    row |= {f"runs.{status}": summary.count(status) for status in STATUSES}
    summaries = [each.summary for each in table.lines]
    for name in dict.fromkeys(name for each in summaries for name in each.metrics):
        estimate = summary.metrics.get(name)
        if is_measured_once(name):
            row[f"{name}.mean"] = estimate.mean if estimate else None
        else:
            row |= _moments(name, estimate)
        if any(name in each.differences for each in summaries):
            difference = summary.differences.get(name)
            row |= _moments(f"{name}.difference", difference)
            interval = difference.student if difference else None
            row[f"{name}.difference.low"] = interval.low if interval else None
            row[f"{name}.difference.high"] = interval.high if interval else None
        if any(name in each.rounds for each in summaries):
            row |= _by_rounds(f"{name}.rounds", summary.rounds.get(name))
            row |= _by_rounds(f"{name}.ratio", summary.ratios.get(name))
    return row | _published(table, summary.name)


def _published(table: Table, name: str) -> dict[str, Any]:
    """Return what is published of one row, under the names of all that is published of any."""
    published = table.published
    if published is None:
        return {}
    said = [published.of(line.summary.name) for line in table.lines]
    measures = dict.fromkeys(measure for of_row in said for measure in of_row)
    row = {f"published.{measure}": published.of(name).get(measure) for measure in measures}
    return {**row, "published.source": published.source, "published.note": published.note}


def _moments(name: str, estimate: Estimate | None) -> dict[str, Any]:
    return {
        f"{name}.mean": estimate.mean if estimate else None,
        f"{name}.sd": estimate.sd if estimate else None,
        f"{name}.n": estimate.n if estimate else 0,
    }


def _by_rounds(name: str, rounds: Rounds | None) -> dict[str, Any]:
    return {
        f"{name}.median": rounds.median if rounds else None,
        f"{name}.sd": rounds.sd if rounds else None,
        f"{name}.n": rounds.n if rounds else 0,
    }


def _source(table: Table) -> dict[str, str | None] | None:
    """Return whose numbers the published ones are; None where there are none."""
    return table.published.model_dump(include={"source", "note"}) if table.published else None


def _object(table: Table, line: Line, *, is_baseline: bool) -> dict[str, Any]:
    summary = line.summary
    return {
        "name": summary.name,
        "is_baseline": is_baseline,
        "changes": dict(line.changes),
        "outcomes": _by_seed(summary.outcomes),
        "errors": _by_seed(summary.errors),
        "metrics": {
            name: _estimate(each) | ({"sd": None} if is_measured_once(name) else {})
            for name, each in summary.metrics.items()
        },
        "differences": {
            name: {
                **_estimate(each),
                "student": _ends(each.student),
                "bootstrap": _ends(each.bootstrap),
            }
            for name, each in summary.differences.items()
        },
        "rounds": {name: _turns(each) for name, each in summary.rounds.items()},
        "ratios": {name: _turns(each) for name, each in summary.ratios.items()},
        "published": table.published.of(summary.name) if table.published else {},
    }


def _turns(rounds: Rounds) -> dict[str, Any]:
    return {
        "median": rounds.median,
        "sd": rounds.sd,
        "n": rounds.n,
        "values": list(rounds.values),
        "occasion": rounds.occasion,
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    values = {seed: _finite(value) for seed, value in estimate.values.items()}
    return {
        "mean": _finite(estimate.mean),
        "sd": estimate.sd,
        "n": estimate.n,
        "values": _by_seed(values),
    }


def _by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(seed): value for seed, value in values.items()}


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
