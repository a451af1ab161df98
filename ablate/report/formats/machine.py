"""The table for other programs: every number in full, under the name it has in a record."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from ablate.analysis.comparison import Difference
from ablate.analysis.contexts import OverContexts
from ablate.analysis.statistics import LEVEL, Interval
from ablate.analysis.summary import STATUSES, Rounds, Speed, is_measured_once
from ablate.errors import SpecError
from ablate.printable import SCHEMA, json_text
from ablate.report.columns import changed_paths
from ablate.report.contexts import metric_of, verdict_over
from ablate.report.formats import TableFormat
from ablate.report.results import Results
from ablate.report.table import ALL, COMPACT, Contexts, Line, Table
from ablate.writing import csv_text

Ends = list[float] | None
"""The ends of an interval."""


class ErrorContent(TypedDict):
    """The error model of one metric; ``detectable`` is found with a probability of 80%."""

    sd: float | None
    df: float | None
    critical: float | None
    detectable: Ends
    departed: list[str]
    sharing: list[str]
    diverged: list[str]


class MetricContent(TypedDict):
    """One metric of a row; the mean of a perplexity is exp of the mean NLL."""

    mean: float | None
    sd: float | None
    n: int
    values: dict[str, float | None]


class DifferenceContent(TypedDict):
    """A row less the baseline: ``interval`` holds together with those of all rows."""

    estimate: float | None
    n: int
    won: int
    method: str | None
    se: float | None
    df: float | None
    interval: Ends
    single: Ends
    sentences: Ends
    p: float | None
    median_unbiased: float | None
    verdict: str | None


class SpeedContent(TypedDict):
    """A speed or memory whose rows took turns."""

    polished: float | None
    ratio: float | None
    ratio_interval: Ends
    median: float | None
    sd: float | None
    n: int
    values: list[float]
    session: str


class RowContent(TypedDict):
    """One row; what is given by seed has seeds as keys."""

    name: str
    is_baseline: bool
    changes: dict[str, Any]
    outcomes: dict[str, str]
    decided_at: int | None
    errors: dict[str, str]
    metrics: dict[str, MetricContent]
    differences: dict[str, DifferenceContent]
    speeds: dict[str, SpeedContent]
    published: dict[str, float]


class TableContent(TypedDict):
    """A table; ``errors`` are by metric, and the first row is the baseline."""

    experiment: str
    question: str | None
    seeds: list[int]
    looks: list[int]
    trial: list[str]
    level: float
    negligible: dict[str, float]
    conclusion: str | None
    published: dict[str, Any] | None
    errors: dict[str, ErrorContent]
    rows: list[RowContent]
    footnotes: list[dict[str, str]]


class SlopeContent(TypedDict):
    """By how much a difference changes where the number of ``trend`` doubles."""

    estimate: float
    interval: Ends


class OverContent(TypedDict):
    """A row's differences in all contexts: ``here`` is of new seeds, ``interval`` of others too."""

    n: int
    mean: float
    here: Ends
    interval: Ends
    prediction: Ends
    tau: float | None
    verdict: str | None
    trend: SlopeContent | None


class RowOverContent(TypedDict):
    """One row in all contexts, by kind of metric."""

    name: str
    over: dict[str, OverContent]


class ContextsContent(TypedDict):
    """An experiment with contexts: the table of each, and its rows in all of them."""

    experiment: str
    question: str | None
    trial: list[str]
    level: float
    conclusion: str
    trend: str | None
    sizes: dict[str, float]
    rows: list[RowOverContent]
    contexts: dict[str, TableContent]
    footnotes: list[dict[str, str]]


_BRIEF = re.compile(  # the columns that most readers of a CSV want
    r"row|trial|(change|runs|published|signature)\..+|params\.total\.mean|flops\.train\.mean|dev\.nll\.mean"
    r"|speed\..+\.ratio|memory\.train_peak_mib\.mean|test\.[^.]+\.(?!bits_per)[^.]+\.mean"
    r"|test\.[^.]+\.bleu\.(sd|n)|test\.[^.]+\.(bleu|nll)\.difference\.(estimate|low|high|verdict)"
)


class Csv(TableFormat):
    """A line per row, for spreadsheets; what is not known is empty.

    In brief (``compact``): what a row changes, the runs by status, means, BLEU and NLL with their
    differences and intervals, sizes and speeds. ``all`` columns are

    - ``row``, ``trial`` where the table is one, ``change.<path>`` (as JSON), ``runs.<status>``;
    - for every metric ``<metric>.mean``, ``.sd`` and ``.n``; the mean of a perplexity is exp of the
      mean NLL. Speed and memory, which are measured once for all seeds, have the mean alone;
    - for every score and loss ``<metric>.difference`` from the baseline: ``.estimate``, ``.n`` and
      ``.won`` (seeds that both have, and those in which the row is higher), ``.method``, ``.se``,
      ``.df``, the ends ``.low`` and ``.high`` of the 95% interval that holds together with those of
      all rows, ``.single.low`` and ``.single.high`` of the one that holds by itself,
      ``.sentences.low`` and ``.sentences.high`` of the simultaneous one for new test sentences too,
      the adjusted ``.p``, the ``.median_unbiased`` estimate of a row that a look has found to
      differ, and ``.verdict`` where the experiment says what is negligible (of an NLL
      per token only where all rows have one tokenizer);
    - for a speed at which the rows took turns ``<metric>.rounds.median``, ``.sd`` and ``.n``, its
      ``.polished`` value, and the ``.ratio`` of this to the baseline's with the ends ``.ratio.low``
      and ``.ratio.high`` of its 95% interval;
    - ``published.<measure>``, with ``published.source`` and ``published.note``, and how each metric
      was computed in ``signature.<metric>``.

    Of an experiment with contexts: a line per row, kind of metric and context, and under the names
    ``(here)``, ``(mean)``, ``(new)`` and ``(trend)`` what all of them come to.
    """

    name = "csv"
    file_name = "table.csv"
    suffix = ".csv"
    default_columns = COMPACT

    def selected(self, table: Table) -> Table:
        return _unchanged(table, "a CSV", self.columns, (COMPACT, ALL))

    def text(self, table: Table) -> str:
        if table.contexts is not None:
            return csv_text([*_in_contexts(table.contexts)])
        rows = [_row(table, _results(table), line) for line in table.lines]
        if self.columns == [COMPACT]:
            brief = [name for name in rows[0] if _BRIEF.fullmatch(name)]
            rows = [{name: row[name] for name in brief} for row in rows]
        return csv_text(rows)


class BySeed(TableFormat):
    """A line per row, seed and metric, for programs that plot.

    The columns are ``row``, ``trial`` where the table is one, ``seed``, ``status``, ``metric``,
    ``value`` and the ``signature`` of a metric that has one; a run without numbers has a line with
    its status alone.
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
        lines, signatures = [], _results(table).signatures
        for summary in (line.summary for line in table.lines):
            for seed, status in summary.outcomes.items():
                run = {"row": summary.name, **_trial(table), "seed": seed, "status": status}
                known = [name for name, each in summary.metrics.items() if seed in each.values]
                for name in known:
                    measured = {"metric": name, "value": summary.metrics[name].values[seed]}
                    signature = signatures.get(name.rpartition(".")[2])
                    lines.append({**run, **measured, "signature": signature})
                if not known:
                    lines.append({**run, "metric": None, "value": None, "signature": None})
        return lines


class Json(TableFormat):
    """Everything that the table was made from, each value with its seed, for programs."""

    name = "json"
    suffix = ".json"

    def selected(self, table: Table) -> Table:
        return _unchanged(table, "JSON", self.columns, (ALL,))

    def text(self, table: Table) -> str:
        content = self._content(table) if table.contexts is None else self._contexts(table)
        return json_of({"schema": SCHEMA, **content})

    def _contexts(self, table: Table) -> ContextsContent:
        contexts = table.contexts
        assert contexts is not None, "it is the overview of some"
        names = [line.summary.name for line in table.lines[1:]]
        return {
            "experiment": table.name,
            "question": table.question,
            "trial": list(table.trial),
            "level": LEVEL,
            "conclusion": table.conclusion,
            "trend": contexts.trend,
            "sizes": dict(contexts.sizes),
            "rows": [
                {
                    "name": name,
                    "over": {
                        kind: _over(contexts, kind, of_rows[name])
                        for kind, of_rows in contexts.over.items()
                        if name in of_rows
                    },
                }
                for name in names
            ],
            "contexts": {name: self._content(each) for name, each in contexts.tables.items()},
            "footnotes": [{"label": note.label, "text": note.text} for note in table.footnotes],
        }

    def _content(self, table: Table) -> TableContent:
        results = _results(table)
        published = results.published
        errors: dict[str, ErrorContent] = {
            name: {
                "sd": compared.sd,
                "df": compared.df,
                "critical": compared.family.critical,
                "detectable": _ends(compared.detectable),
                "departed": list(compared.departed),
                "sharing": list(compared.sharing),
                "diverged": list(compared.diverged),
            }
            for name, compared in results.comparisons.items()
        }
        return {
            "experiment": table.name,
            "question": table.question,
            "seeds": list(table.seeds),
            "looks": list(results.looks.planned) if results.looks else [],
            "trial": list(table.trial),
            "level": LEVEL,
            "negligible": dict(results.negligible),
            "conclusion": table.conclusion,
            "published": published.model_dump(include={"source", "note"}) if published else None,
            "errors": errors,
            "rows": [_object(results, line) for line in table.lines],
            "footnotes": [{"label": note.label, "text": note.text} for note in table.footnotes],
        }


def _over(contexts: Contexts, kind: str, over: OverContexts) -> OverContent:
    results = _results(next(iter(contexts.tables.values())))
    judged = verdict_over(kind, over.interval, results)
    slope: SlopeContent | None = None
    if over.trend is not None:
        slope = {"estimate": over.trend.estimate, "interval": _ends(over.trend.interval)}
    return {
        "n": over.n,
        "mean": over.mean,
        "here": _ends(over.here),
        "interval": _ends(over.interval),
        "prediction": _ends(over.prediction),
        "tau": over.tau,
        "verdict": str(judged) if judged else None,
        "trend": slope,
    }


def _in_contexts(contexts: Contexts) -> Iterator[dict[str, Any]]:
    """Yield a line of the CSV for each row, kind of metric and context, and for all of these."""
    for kind, of_rows in contexts.over.items():
        first = _results(next(iter(contexts.tables.values())))
        for row in (each.name for each in first.summaries[1:]):
            for name, table in contexts.tables.items():
                results = _results(table)
                own = _difference(results, row, metric_of(kind, results))
                yield _line(row, kind, name, own["estimate"], own["interval"], own["verdict"])
            if row not in of_rows:
                continue
            over = _over(contexts, kind, of_rows[row])
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


def _results(table: Table) -> Results:
    assert table.results is not None, "two sets of results have a CSV and a JSON of their own"
    return table.results


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
    row |= {"decided_at": results.looks.decided.get(summary.name)} if results.looks else {}
    with_rounds = {name for each in results.summaries for name in each.rounds}
    for name in dict.fromkeys(name for each in results.summaries for name in each.metrics):
        estimate = summary.metrics.get(name)
        row[f"{name}.mean"] = estimate.mean if estimate else None
        if not is_measured_once(name):
            row[f"{name}.sd"] = estimate.sd if estimate else None
            row[f"{name}.n"] = estimate.n if estimate else 0
        if name in results.comparisons:
            row |= _flat(f"{name}.difference", _difference(results, summary.name, name))
        if name in with_rounds:
            row |= _by_rounds(name, summary.rounds.get(name), summary.speeds.get(name))
    if published := results.published:
        of_rows = [published.of(each.name) for each in results.summaries]
        for measure in dict.fromkeys(measure for of_row in of_rows for measure in of_row):
            row[f"published.{measure}"] = published.of(summary.name).get(measure)
        row["published.source"], row["published.note"] = published.source, published.note
    return row | {f"signature.{metric}": text for metric, text in results.signatures.items()}


def _flat(name: str, difference: Mapping[str, Any]) -> dict[str, Any]:
    flat = {}
    for key, value in difference.items():
        if key in ("interval", "single", "sentences"):
            prefix = name if key == "interval" else f"{name}.{key}"
            flat[f"{prefix}.low"], flat[f"{prefix}.high"] = value or (None, None)
        else:
            flat[f"{name}.{key}"] = value
    return flat


def _difference(results: Results, row: str, metric: str) -> DifferenceContent:
    """Return all that is known of a difference; the same names whatever is known."""
    known, verdict = results.difference(row, metric), results.verdict(row, metric)
    each = known or Difference(None, 0, 0, "none")
    return {
        "estimate": _finite(each.estimate),
        "n": each.n,
        "won": each.n_won,
        "method": known.method if known else None,
        "se": each.standard_error,
        "df": each.df,
        "interval": _ends(each.simultaneous),
        "single": _ends(each.single),
        "sentences": _ends(each.with_sentences),
        "p": each.p,
        "median_unbiased": each.median_unbiased,
        "verdict": str(verdict) if verdict else None,
    }


def _by_rounds(name: str, rounds: Rounds | None, speed: Speed | None) -> dict[str, Any]:
    ends = speed.interval if speed else None
    return {
        f"{name}.rounds.median": rounds.median if rounds else None,
        f"{name}.rounds.sd": rounds.sd if rounds else None,
        f"{name}.rounds.n": rounds.n if rounds else 0,
        f"{name}.polished": speed.value if speed else None,
        f"{name}.ratio": speed.ratio if speed else None,
        f"{name}.ratio.low": ends.low if ends else None,
        f"{name}.ratio.high": ends.high if ends else None,
    }


def _object(results: Results, line: Line) -> RowContent:
    summary = line.summary
    metrics: dict[str, MetricContent] = {
        name: {
            "mean": each.mean,
            "sd": None if is_measured_once(name) else each.sd,
            "n": each.n,
            "values": _by_seed(each.values),
        }
        for name, each in summary.metrics.items()
    }
    speeds: dict[str, SpeedContent] = {}
    for name, rounds in summary.rounds.items():
        speed = summary.speeds[name]
        speeds[name] = {
            "polished": speed.value,
            "ratio": speed.ratio,
            "ratio_interval": _ends(speed.interval),
            "median": rounds.median,
            "sd": rounds.sd,
            "n": rounds.n,
            "values": list(rounds.values),
            "session": rounds.session,
        }
    return {
        "name": summary.name,
        "is_baseline": summary is results.baseline,
        "changes": dict(line.changes),
        "outcomes": _by_seed(summary.outcomes),
        "decided_at": results.looks.decided.get(summary.name) if results.looks else None,
        "errors": _by_seed(summary.errors),
        "metrics": metrics,
        "differences": {
            name: _difference(results, summary.name, name)
            for name, compared in results.comparisons.items()
            if summary.name in compared.differences
        },
        "speeds": speeds,
        "published": results.published.of(summary.name) if results.published else {},
    }


def _by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(seed): value for seed, value in values.items()}


def _ends(interval: Interval | None) -> Ends:
    return None if interval is None else [interval.low, interval.high]


def _all_finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _all_finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_all_finite(value) for value in content]
    return _finite(content) if isinstance(content, float) else content


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
