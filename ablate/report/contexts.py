"""The overview of an experiment with contexts: each row's difference in every one, and in all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ablate.analysis.comparison import Difference
from ablate.analysis.contexts import LEAST, OverContexts, over_contexts
from ablate.analysis.measures import Verdict, higher_is_better, verdict
from ablate.analysis.statistics import Interval
from ablate.analysis.summary import Summary, have_one_tokenizer
from ablate.config import Experiment, value_at
from ablate.config.contexts import trend_of
from ablate.config.rows import labels
from ablate.report.columns import DIVERGED, Block
from ablate.report.results import Results
from ablate.report.table import FIRST_BELOW, Cell, Column, Contexts, Footnote, Line, Table
from ablate.report.values import (
    MOST_NAMES,
    NOTHING,
    format_value,
    grouped,
    interval_text,
    measure_decimals,
    measure_name,
    number,
    row_names,
    signed,
)
from ablate.report.verdicts import NO_ROWS
from ablate.wording import and_list, counted

_MARKS = {
    Verdict.BETTER: "↑",
    Verdict.WORSE: "↓",
    Verdict.NO_DIFFERENCE: "=",
    Verdict.SAME: "=",
    Verdict.CANNOT_TELL: "?",
}
_WORDS = {
    Verdict.BETTER: "better than the baseline",
    Verdict.WORSE: "worse than the baseline",
    Verdict.NO_DIFFERENCE: "within {band} BLEU of the baseline",
    Verdict.SAME: "the same as the baseline",
    Verdict.CANNOT_TELL: "not told from the baseline",
}
_CHOICES = "matched", "not matched as trained", "tuned"
_UNKNOWN = OverContexts(0, math.nan, None, None, None, None, None)
_OF_ALL, _OF_TREND, _OF_NEW = FIRST_BELOW, FIRST_BELOW + 1, FIRST_BELOW + 2  # ranks


def tabulate(experiment: Experiment, tables: Mapping[str, Table]) -> Table:
    """Lay out what is known of an experiment; ``tables`` are those of its contexts, by name."""
    names = [row.name for row in experiment.rows]
    results = {name: table.results for name, table in tables.items() if table.results}
    sizes = trend_of(experiment.trend, experiment.contexts) if experiment.trend else {}
    known_sizes = {name: size for name in tables if (size := sizes.get(name)) is not None}
    records = [record for each in results.values() for record in each.records.values()]
    kinds = "bleu", "nll" if have_one_tokenizer(records) else "bits_per_character"
    over = {kind: dict(_over(kind, names[1:], results, [*known_sizes.values()])) for kind in kinds}
    contexts = Contexts(tables, over, experiment.trend, known_sizes)
    first, second = (
        _block(experiment, kind, results, contexts, "more" if at else "")
        for at, kind in enumerate(kinds)
    )
    return Table(
        name=experiment.name,
        question=experiment.question,
        seeds=experiment.seeds,
        columns=first[0],
        lines=first[1],
        footnotes=tuple(_footnotes(experiment, kinds, results, contexts)),
        conclusion=conclusion(names[1:], results, contexts),
        more=Table(experiment.name, None, experiment.seeds, *second, ()),
        trial=next(iter(tables.values())).trial,
        contexts=contexts,
    )


def metric_of(kind: str, results: Results) -> str:
    """Return the metric of a kind on the test set by which the rows of a context are judged."""
    return f"test.{results.sets[0]}.{kind}" if results.sets else ""


def verdict_over(
    kind: str, interval: Interval | None, results: Collection[Results]
) -> Verdict | None:
    """Return the verdict on a mean over contexts; None where nothing is called negligible."""
    band = dict(next(iter(results)).negligible).get(kind)
    if band is None:
        return None
    scores = [each.baseline_score(metric_of(kind, each)) for each in results]
    lowest = min((score for score in scores if score is not None), default=None)
    better = higher_is_better(f"test.{kind}")
    return verdict(interval, band, higher_is_better=better, baseline=lowest)


def _over(
    kind: str, rows: Sequence[str], results: Mapping[str, Results], sizes: Sequence[float]
) -> Iterator[tuple[str, OverContexts]]:
    has_looks = bool(_looks_at(results))
    for row in rows:
        differences = [each.difference(row, metric_of(kind, each)) for each in results.values()]
        if over := over_contexts(differences, len(rows), sizes or None, has_looks=has_looks):
            yield row, over


def _looks_at(results: Mapping[str, Results]) -> tuple[int, ...]:
    return next((looks for each in results.values() if (looks := each.looks.planned)), ())


def _block(
    experiment: Experiment,
    kind: str,
    results: Mapping[str, Results],
    contexts: Contexts,
    title: str,
) -> tuple[tuple[Column, ...], tuple[Line, ...]]:
    names = [row.name for row in experiment.rows]
    blocks = [(Column("row", title, kind="row"), [Cell(name) for name in names])]
    for name, each in results.items():
        blocks += _of_context(name, kind, names[1:], each)
    blocks += _of_all(kind, names[1:], results.values(), contexts)
    columns, cells = zip(*blocks, strict=True)
    lines = [
        Line(tuple(of_row), row.changes, Summary(row.name, {}, {}, {}))
        for *of_row, row in zip(*cells, experiment.rows, strict=True)
    ]
    return columns, tuple(lines)


def _of_context(context: str, kind: str, rows: Sequence[str], results: Results) -> list[Block]:
    """Return the baseline's mean with the differences below it, and their intervals."""
    metric, decimals = metric_of(kind, results), measure_decimals(kind)
    baseline = results.baseline.metrics.get(metric)
    differences, ends = [Cell(number(baseline.mean, decimals) if baseline else NOTHING)], [Cell()]
    for row in rows:
        each = results.difference(row, metric) or Difference(None, 0, 0, "none")
        known = NOTHING if each.estimate is None else signed(each.estimate, decimals)
        judged = results.verdict(row, metric)
        mark = DIVERGED if each.method == "divergence as 0" else ""
        differences.append(Cell(known, mark=_MARKS[judged] if judged else mark))
        ends.append(Cell(interval_text(each.simultaneous, decimals)))
    key = f"{context}.{kind}.difference"
    return [
        (Column(key, context, f"Δ{measure_name(kind)}"), differences),
        (Column(f"{key}.interval", "95% CI", "of Δ"), ends),
    ]


def _of_all(
    kind: str, rows: Sequence[str], results: Collection[Results], contexts: Contexts
) -> list[Block]:
    """Return the columns of all contexts together; the baseline's cells are empty."""
    decimals, bands = measure_decimals(kind), dict(next(iter(results)).negligible)
    every = [contexts.over[kind].get(row, _UNKNOWN) for row in rows]
    has_others = len(contexts.tables) >= LEAST

    def block(key: str, header: str, detail: str, texts: list[str], rank: int = _OF_ALL) -> Block:
        column = Column(f"over.{kind}.{key}", header, detail, rank=rank)
        return column, [Cell(), *map(Cell, texts)]

    means = [signed(each.mean, decimals) if each.n else NOTHING for each in every]
    here = [interval_text(each.here, decimals) for each in every]
    ends = [interval_text(each.interval, decimals) for each in every]
    blocks = [block("mean", "mean", "of Δ", means), block("here", "95% CI", "here", here)]
    if has_others:
        blocks.append(block("interval", "95% CI", "elsewhere", ends))
    if kind in bands:
        judged = [verdict_over(kind, each.interval, results) or NOTHING for each in every]
        band = f"±{bands[kind]:g} {measure_name(kind)}"
        column, cells = block("verdict", "verdict", band, list(map(str, judged)))
        blocks.append((replace(column, kind="verdict"), cells))
    if kind != "bleu":  # CSV and JSON have the rest
        return blocks
    if contexts.sizes:
        trends = [each.trend for each in every]
        slopes = [signed(each.estimate, decimals) if each else NOTHING for each in trends]
        ends = [interval_text(each.interval if each else None, decimals) for each in trends]
        blocks.append(block("trend", "trend", "per doubling", slopes, _OF_TREND))
        blocks.append(block("trend.interval", "95% CI", "of trend", ends, _OF_TREND))
    if has_others:
        new = [interval_text(each.prediction, decimals) for each in every]
        taus = [NOTHING if each.tau is None else number(each.tau, decimals) for each in every]
        blocks.append(block("prediction", "95% PI", "one more", new, _OF_NEW))
        blocks.append(block("tau", "τ", "over contexts", taus, _OF_NEW))
    return blocks


def _footnotes(
    experiment: Experiment,
    kinds: Sequence[str],
    results: Mapping[str, Results],
    contexts: Contexts,
) -> Iterator[Footnote]:
    yield from _of_contexts(contexts.tables)
    paths, differing = experiment.context_paths, []
    for name, context in experiment.contexts.items():
        spec = context.rows[0].spec.model_dump(mode="json")
        values = (format_value(value_at(spec, path), path) for path in paths)
        pairs = zip(labels(list(paths)), values, strict=True)
        differing.append(f"{name}: {', '.join(f'{label}={value}' for label, value in pairs)}")
    yield Footnote("contexts", "; ".join(differing))
    yield Footnote(
        "Δ",
        f"the row less the baseline of the same context, whose own {measure_name('bleu')} stands "
        "in its line; ↑ better, ↓ worse, = no difference, ? cannot tell: the verdict in this "
        "context. The intervals of a column hold together for its rows.",
        is_vital=True,
    )
    looks = _looks_at(results)
    yield Footnote("mean", _of_mean(len(results), looks))
    if contexts.trend is not None:
        numbers = ", ".join(f"{name} {size:g}" for name, size in contexts.sizes.items())
        yield Footnote(
            "trend",
            f"by how much the difference changes with each doubling of {contexts.trend} "
            f"({numbers}): the slope of the least squares line; its interval is of new seeds in "
            "these contexts.",
        )
    if kinds[1] != "nll":
        text = "tokenizers differ, so that losses are compared in bits per character"
        yield Footnote("columns", text)
    one = next(iter(results))
    yield Footnote("tables", f"one context alone: ablate report SPEC#{one}")
    seeds = (
        f"{counted(len(experiment.seeds), 'seed')} in every context, the same for all rows of it"
    )
    if looks:
        seeds = f"as many of each row as the looks of its context came to, {looks[-1]} at most"
    yield Footnote("seeds", seeds)
    signatures = grouped((each.signatures.get("bleu"), name) for name, each in results.items())
    for signature, names in signatures.items():
        if signature:
            where = "" if len(names) == len(results) else f", {and_list(names)}"
            yield Footnote(f"{measure_name('bleu')}{where}", signature)


def _of_mean(n: int, looks: Sequence[int]) -> str:
    """Return what the mean over ``n`` contexts and its intervals are of."""
    of_mean = (
        "of these contexts; CI here: of new seeds in them; elsewhere, and the verdict: of contexts "
        f"like them (Hartung and Knapp 2001, with equal weights), by what {n} of them show; PI: "
        "what the same seeds measure in one more; τ: the standard deviation of the true difference "
        "from context to context."
    )
    if n == 1:
        return "none so far: only one context has results."
    if n < LEAST:
        of_mean = (
            f"of these {n} contexts; its interval and verdict are of new seeds here, and say "
            f"nothing of other contexts: that takes {LEAST}."
        )
    if looks:
        of_mean += (
            " Looks at the data end the seeds, so that intervals of new seeds are as wide as those "
            "of the contexts on average."
        )
    return of_mean


def _of_contexts(tables: Mapping[str, Table]) -> Iterator[Footnote]:
    """Yield what is vital in the table of a context, and how values of its rows were chosen."""
    notes = grouped(
        (note, name)
        for name, table in tables.items()
        for note in table.footnotes
        if note.is_vital or note.label in _CHOICES
        if len(note.label) > 1 or note.label == DIVERGED  # others are marks of columns
    )
    for note, names in notes.items():
        where = "" if len(names) == len(tables) else f"{and_list(names)}, "
        yield replace(note, label=f"{where}{note.label}")


def conclusion(rows: Sequence[str], results: Mapping[str, Results], contexts: Contexts) -> str:
    """Return in one sentence in which contexts the rows are what."""
    if why := _why_none(rows, results):
        return why
    band = next(iter(results.values())).negligible.bleu
    words = {each: text.format(band=f"{band:g}") for each, text in _WORDS.items()}
    whole: dict[Verdict, list[str]] = {}
    mixed: list[str] = []
    for row in rows:
        judged = {c: each.verdict(row, metric_of("bleu", each)) for c, each in results.items()}
        by_verdict = grouped((each, context) for context, each in judged.items() if each)
        lost = [context for context, each in results.items() if row in each.diverged]
        if len(by_verdict) == 1 and None not in judged.values():
            whole.setdefault(next(iter(by_verdict)), []).append(row)
        elif by_verdict or lost:
            mixed.append(row_names([row]) + _by_context(by_verdict, lost, words))
    n = len(results)
    every = {1: "the one context with results", 2: "both contexts"}.get(n, f"all {n} contexts")
    parts = []
    for each, names in whole.items():
        text = f"{'is' if len(names) == 1 else 'are'} {words[each]} in {every}"
        if each is Verdict.CANNOT_TELL:
            text = "cannot be told from the baseline in any context"
        parts.append(f"{row_names(names, MOST_NAMES)} {text}")
    if len(mixed) > MOST_NAMES:
        mixed = [f"{counted(len(mixed), 'row')} differ from context to context or diverged"]
    parts += [*mixed, *_trends(contexts, band)]
    return f"By BLEU, {'; '.join(parts)}." if parts else "Too few runs are done: no verdicts yet."


def _by_context(
    by_verdict: Mapping[Verdict, Sequence[str]],
    lost: Sequence[str],
    words: Mapping[Verdict, str],
) -> str:
    """Return in words what a row is in which contexts, and in which it diverged."""
    parts = [
        f"{words[each].removesuffix(' than the baseline')} in {and_list(names)}"
        for each, names in by_verdict.items()
    ]
    text = f" is {and_list(parts)}" if parts else ""
    comma = ", and" if parts else ""
    return f"{text}{comma} diverged in {and_list(lost)}" if lost else text


def _why_none(rows: Sequence[str], results: Mapping[str, Results]) -> str:
    """Return in one sentence why contexts have no verdicts; an empty text if they have."""
    if not rows:
        return NO_ROWS
    diverged = [name for name, each in results.items() if each.baseline.count("diverged")]
    if diverged:
        return f"The baseline diverged in {and_list(diverged)}: no verdicts over all contexts."
    if not all(each.has_verdicts for each in results.values()):
        of_mean = (
            ": the one on the mean is by what they show together" if len(results) >= LEAST else ""
        )
        return f"With one seed there are no verdicts in single contexts{of_mean}."
    return ""


def _trends(contexts: Contexts, band: float) -> Iterator[str]:
    """Yield which differences change with the size by more than is negligible, if any does."""
    known = {row: over.trend for row, over in contexts.over["bleu"].items()}
    changes = [
        f"{row} by {signed(trend.estimate, 1)}"
        for row, trend in known.items()
        if trend and verdict(trend.interval, band) in (Verdict.BETTER, Verdict.WORSE)
    ]
    if changes and contexts.trend:
        named = and_list(changes, MOST_NAMES)
        size = labels([contexts.trend])[0]
        yield f"differences change with each doubling of {size}: {named} BLEU"
