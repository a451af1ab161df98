"""What a table was made from, as plain data: numbers in full, None for what is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from ablate.analysis.comparison import Difference
from ablate.analysis.contexts import OverContexts
from ablate.analysis.statistics import LEVEL, Interval
from ablate.analysis.summary import is_measured_once
from ablate.report.contexts import verdict_over
from ablate.report.results import Results
from ablate.report.table import Contexts, Line, Table

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


def table_content(table: Table) -> TableContent:
    """Return what is known of an experiment."""
    results = results_of(table)
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
        "looks": list(results.looks.planned),
        "trial": list(table.trial),
        "level": LEVEL,
        "negligible": dict(results.negligible),
        "conclusion": table.conclusion,
        "published": published.model_dump(include={"source", "note"}) if published else None,
        "errors": errors,
        "rows": [_object(results, line) for line in table.lines],
        "footnotes": [{"label": note.label, "text": note.text} for note in table.footnotes],
    }


def contexts_content(table: Table) -> ContextsContent:
    """Return what is known of an experiment with contexts."""
    contexts = table.contexts
    assert contexts is not None, "it is the overview of some"
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
                "name": line.summary.name,
                "over": {
                    kind: over_content(contexts, kind, of_rows[line.summary.name])
                    for kind, of_rows in contexts.over.items()
                    if line.summary.name in of_rows
                },
            }
            for line in table.lines[1:]
        ],
        "contexts": {name: table_content(each) for name, each in contexts.tables.items()},
        "footnotes": [{"label": note.label, "text": note.text} for note in table.footnotes],
    }


def over_content(contexts: Contexts, kind: str, over: OverContexts) -> OverContent:
    """Return what a row comes to in all contexts."""
    results = [each.results for each in contexts.tables.values() if each.results]
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


def difference_content(results: Results, row: str, metric: str) -> DifferenceContent:
    """Return all that is known of a difference; the same names whatever is known."""
    known, verdict = results.difference(row, metric), results.verdict(row, metric)
    each = known or Difference(None, 0, 0, "none")
    return {
        "estimate": finite(each.estimate),
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


def results_of(table: Table) -> Results:
    """Return the results that a table of runs was made from."""
    assert table.results is not None, "two sets of results have a CSV and a JSON of their own"
    return table.results


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
    speeds: dict[str, SpeedContent] = {
        name: {
            "polished": summary.speeds[name].value,
            "ratio": summary.speeds[name].ratio,
            "ratio_interval": _ends(summary.speeds[name].interval),
            "median": rounds.median,
            "sd": rounds.sd,
            "n": rounds.n,
            "values": list(rounds.values),
            "session": rounds.session,
        }
        for name, rounds in summary.rounds.items()
    }
    return {
        "name": summary.name,
        "is_baseline": summary is results.baseline,
        "changes": dict(line.changes),
        "outcomes": _by_seed(summary.outcomes),
        "decided_at": results.looks.decided.get(summary.name),
        "errors": _by_seed(summary.errors),
        "metrics": metrics,
        "differences": {
            name: difference_content(results, summary.name, name)
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


def finite(value: float | None) -> float | None:
    """Return a number; None if it is infinite or not one."""
    return value if value is not None and math.isfinite(value) else None
