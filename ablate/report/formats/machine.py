"""The table for other programs: every number in full, under the name it has in a record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.analysis.summary import STATUSES, Summary, is_measured_once
from ablate.errors import SpecError
from ablate.printable import SCHEMA, json_text
from ablate.report.columns import changed_paths
from ablate.report.content import (
    Ends,
    contexts_content,
    difference_content,
    finite,
    over_content,
    results_of,
    table_content,
)
from ablate.report.contexts import metric_of
from ablate.report.formats import TableFormat
from ablate.report.results import Results
from ablate.report.table import ALL, COMPACT, Contexts, Line, Table
from ablate.report.values import interval_ends
from ablate.writing import csv_text

_BRIEF = re.compile(  # the columns that most readers of a CSV want
    r"row|trial|(change|runs|published|signature)\..+|params\.total\.mean|flops\.train\.mean|dev\.nll\.mean"
    r"|speed\..+\.ratio|memory\.train_peak_mib\.mean|test\.[^.]+\.(?!bits_per)[^.]+\.mean"
    r"|test\.[^.]+\.bleu\.(sd|n)|test\.[^.]+\.(bleu|nll)\.difference\.(estimate|low|high|verdict)"
)


class Csv(TableFormat):
    """A line per row, for spreadsheets; what is not known is empty.

    In brief (``compact``): what a row changes, the runs by status, means, BLEU, NLL and the loss of
    the table with their differences and intervals, sizes and speeds. docs/results.md has ``all``
    columns.
    """

    name = "csv"
    file_name = "table.csv"
    suffix = ".csv"
    default_columns = COMPACT

    def selected(self, table: Table) -> Table:
        return _unchanged(table, "a CSV", self.columns, (COMPACT, ALL))

    def text(self, table: Table) -> str:
        if table.contexts is not None:
            lines = _in_contexts(table.contexts)
            return csv_text([{"row": line["row"], **_trial(table), **line} for line in lines])
        results = results_of(table)
        rows = [_row(table, results, line) for line in table.lines]
        if self.columns == [COMPACT]:
            loss = str(results.loss).rpartition(".")[2]
            brief = [n for n in rows[0] if _BRIEF.fullmatch(n.replace(f".{loss}.", ".nll."))]
            rows = [{name: row[name] for name in brief} for row in rows]
        return csv_text(rows)


class BySeed(TableFormat):
    """A line per row, seed and metric, for programs that plot.

    A run without numbers has a line with its status alone; docs/results.md has the columns.
    """

    name = "by-seed"
    file_name = "seeds.csv"

    def selected(self, table: Table) -> Table:
        return _unchanged(table, "a table by seed", self.columns, (ALL,))

    def text(self, table: Table) -> str:
        if table.contexts is None:
            return csv_text(self._lines(table))
        tables = table.contexts.tables.items()
        return csv_text([{"context": c, **line} for c, of in tables for line in self._lines(of)])

    def _lines(self, table: Table) -> list[dict[str, Any]]:
        lines, signatures = [], results_of(table).signatures
        for summary in (line.summary for line in table.lines):
            for seed, status in summary.outcomes.items():
                run = {"row": summary.name, **_trial(table), "seed": seed, "status": status}
                known = [name for name, each in summary.metrics.items() if seed in each.values]
                for name in known or (None,):
                    value = summary.metrics[name].values[seed] if name else None
                    signature = signatures.get(name.rpartition(".")[2]) if name else None
                    measured = {"metric": name, "value": value, "signature": signature}
                    lines.append({**run, **measured})
        return lines


class Json(TableFormat):
    """Everything that the table was made from, each value with its seed, for programs."""

    name = "json"
    suffix = ".json"

    def selected(self, table: Table) -> Table:
        return _unchanged(table, "JSON", self.columns, (ALL,))

    def text(self, table: Table) -> str:
        content = contexts_content(table) if table.contexts else table_content(table)
        return json_of({"schema": SCHEMA, **content})


def _in_contexts(contexts: Contexts) -> Iterator[dict[str, Any]]:
    """Yield a line of the CSV for each row, kind of metric and context, and for all of these."""
    for kind, of_rows in contexts.over.items():
        first = results_of(next(iter(contexts.tables.values())))
        for row in (each.name for each in first.summaries[1:]):
            for name, table in contexts.tables.items():
                results = results_of(table)
                own = difference_content(results, row, metric_of(kind, results))
                yield _line(row, kind, name, own["estimate"], own["interval"], own["verdict"])
            if row not in of_rows:
                continue
            over = over_content(contexts, kind, of_rows[row])
            yield _line(row, kind, "(here)", over["mean"], over["here"], None)
            yield _line(row, kind, "(mean)", over["mean"], over["interval"], over["verdict"])
            yield _line(row, kind, "(new)", over["mean"], over["prediction"], None)
            if over["trend"] is not None:
                trend = over["trend"]
                yield _line(row, kind, "(trend)", trend["estimate"], trend["interval"], None)


def _line(
    row: str, kind: str, context: str, estimate: float | None, ends: Ends, judged: str | None
) -> dict[str, Any]:
    low, high = ends or (None, None)
    line = {"row": row, "metric": kind, "context": context, "estimate": estimate}
    return {**line, "low": low, "high": high, "verdict": judged}


def json_of(content: Any) -> str:
    """Write plain data as JSON, with null for a number that JSON does not have (NaN, infinity)."""
    return json_text(_all_finite(content)) + "\n"


def _unchanged(table: Table, format_: str, columns: Sequence[str], known: Sequence[str]) -> Table:
    """Return ``table`` as it is, for a format that does not hold its columns but its numbers."""
    if len(columns) != 1 or columns[0] not in known:
        raise SpecError(
            f"--columns {','.join(columns)}: {format_} has {' or '.join(known)} columns"
        )
    if table.is_of_paper:
        raise SpecError(f"{format_} has a layout of its own; remove --layout")
    return table


def _trial(table: Table) -> dict[str, str]:
    return {"trial": "; ".join(table.trial)} if table.trial else {}


def _row(table: Table, results: Results, line: Line) -> dict[str, Any]:
    """Return a line of the CSV, with the same names in all lines."""
    summary = line.summary
    row: dict[str, Any] = {"row": summary.name, **_trial(table)}
    for path in changed_paths(each.changes for each in table.lines):
        has_it = path in line.changes
        row[f"change.{path}"] = json.dumps(line.changes[path]) if has_it else None
    row |= {f"runs.{status}": summary.count(status) for status in STATUSES}
    if results.looks.planned:
        row["decided_at"] = results.looks.decided.get(summary.name)
    for name in dict.fromkeys(name for each in results.summaries for name in each.metrics):
        row |= _of_metric(results, summary, name)
    if published := results.published:
        of_rows = [published.of(each.name) for each in results.summaries]
        for measure in dict.fromkeys(measure for of_row in of_rows for measure in of_row):
            row[f"published.{measure}"] = published.of(summary.name).get(measure)
        row["published.source"], row["published.note"] = published.source, published.note
    return row | {f"signature.{metric}": text for metric, text in results.signatures.items()}


def _of_metric(results: Results, summary: Summary, name: str) -> dict[str, Any]:
    estimate, rounds = summary.metrics.get(name), summary.rounds.get(name)
    speed = summary.speeds.get(name)
    row: dict[str, Any] = {f"{name}.mean": estimate and estimate.mean}
    if not is_measured_once(name):
        row |= {f"{name}.sd": estimate and estimate.sd, f"{name}.n": estimate.n if estimate else 0}
    if name in results.comparisons:
        row |= _flat(f"{name}.difference", difference_content(results, summary.name, name))
    if any(name in each.rounds for each in results.summaries):
        row |= {
            f"{name}.rounds.median": rounds and rounds.median,
            f"{name}.rounds.sd": rounds and rounds.sd,
            f"{name}.rounds.n": rounds.n if rounds else 0,
            f"{name}.polished": speed and speed.value,
            f"{name}.ratio": speed and speed.ratio,
            **interval_ends(speed.interval if speed else None, f"{name}.ratio."),
        }
    return row


def _flat(name: str, difference: Mapping[str, Any]) -> dict[str, Any]:
    flat = {}
    for key, value in difference.items():
        if key in ("interval", "single", "sentences"):
            prefix = name if key == "interval" else f"{name}.{key}"
            flat[f"{prefix}.low"], flat[f"{prefix}.high"] = value or (None, None)
        else:
            flat[f"{name}.{key}"] = value
    return flat


def _all_finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _all_finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_all_finite(value) for value in content]
    return finite(content) if isinstance(content, float) else content
