"""The table for other programs: every number in full, under the name it has in a record."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from typing import Any

from ablate.analysis import LEVEL, STATUSES, Estimate, Interval
from ablate.report.cells import Line, Table
from ablate.report.changes import changed_paths


def comma_separated(table: Table) -> str:
    """Write one line per row, under a line of headers.

    The columns are ``row``, ``change.<path>`` (as JSON), ``runs.<status>``, then for every metric
    ``<metric>.mean``, ``.sd`` and ``.n``, and of its paired difference from the baseline
    ``<metric>.difference.mean``, ``.sd``, ``.n`` and the ends ``.low`` and ``.high`` of Student's
    95% interval. What is not known is empty.
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
    interval in the other formats; ``bootstrap`` resamples the seeds and is too short for few.
    """
    content = {
        "experiment": table.name,
        "question": table.question,
        "seeds": list(table.seeds),
        "level": LEVEL,
        "rows": [_object(line, is_baseline=at == 0) for at, line in enumerate(table.lines)],
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
        row |= _moments(name, summary.metrics.get(name))
        if any(name in each.differences for each in summaries):
            difference = summary.differences.get(name)
            row |= _moments(f"{name}.difference", difference)
            interval = difference.student if difference else None
            row[f"{name}.difference.low"] = interval.low if interval else None
            row[f"{name}.difference.high"] = interval.high if interval else None
    return row


def _moments(name: str, estimate: Estimate | None) -> dict[str, Any]:
    return {
        f"{name}.mean": estimate.mean if estimate else None,
        f"{name}.sd": estimate.sd if estimate else None,
        f"{name}.n": estimate.n if estimate else 0,
    }


def _object(line: Line, *, is_baseline: bool) -> dict[str, Any]:
    summary = line.summary
    return {
        "name": summary.name,
        "is_baseline": is_baseline,
        "changes": dict(line.changes),
        "outcomes": _by_seed(summary.outcomes),
        "errors": _by_seed(summary.errors),
        "metrics": {name: _estimate(each) for name, each in summary.metrics.items()},
        "differences": {
            name: {
                **_estimate(each),
                "student": _ends(each.student),
                "bootstrap": _ends(each.bootstrap),
            }
            for name, each in summary.differences.items()
        },
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
