"""The footnotes of a table: what a reader needs to trust its numbers, or to repeat them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ablate.analysis.dunnett import single_value
from ablate.analysis.power import MOST_SEEDS, seeds_for
from ablate.analysis.summary import TRAIN_FLOPS, Record, Records, Summary
from ablate.config import Experiment, Match, Tune
from ablate.config.rows import labels
from ablate.report import columns
from ablate.report.columns import BEYOND, DIVERGED, PARTIAL
from ablate.report.provenance import provenance
from ablate.report.results import DECODE_SPEED, MEMORY, TRAIN_SPEED, Results
from ablate.report.table import Footnote
from ablate.report.values import (
    LOSS_DECIMALS,
    MOST_NAMES,
    TIMES,
    format_value,
    grouped,
    measure_name,
    number,
    percent_change,
    row_names,
)
from ablate.report.verdicts import exceptions, intervals, looked_at, ranking
from ablate.wording import and_list, counted, listed, seeds_named

MARKED = f"{BEYOND} marks what differs by more than {columns.TOLERANCE:.0%}"
_MOST_CHARACTERS = 300  # of an error message
_BUDGET = {columns.STEPS: "steps", columns.TOKENS: "target tokens", TRAIN_FLOPS: "training FLOPs"}
_MATCHED = {"params": "params.total", "flops": TRAIN_FLOPS}


def footnotes(experiment: Experiment, results: Results) -> Iterator[Footnote]:
    """Yield the remarks in the order in which a reader needs them."""
    summaries = results.summaries
    yield from intervals(results)
    yield from looked_at(results)
    if line := _budget(summaries):
        yield Footnote("budget", line, is_vital=BEYOND in line)
    if experiment.match is not None:
        yield from _matched(experiment, experiment.match, summaries)
    if experiment.tune is not None:
        yield from _tuned(experiment, experiment.tune)
        yield from _close_choices(experiment.tune, results)
    yield from exceptions(results)
    yield from ranking(results)
    yield from _partial(results)
    yield from _reasons(summaries)
    yield from execution(results.records)
    yield Footnote("seed" if len(results.seeds) == 1 else "seeds", listed(results.seeds))
    for metric, signature in results.signatures.items():
        is_column = metric != "chrf" or metric in results.metrics
        also = "" if is_column else " (in the CSV and the JSON)"
        yield Footnote(measure_name(metric), f"{signature}{also}")
    if results.published:
        yield Footnote("published", results.published.source)
        if results.published.note:
            yield Footnote("published, note", results.published.note)
    yield from _columns(results)
    yield from provenance(results.records)


def execution(records: Records) -> Iterator[Footnote]:
    """Yield which rows were not executed as requested: micro-batches, engine, averaging."""
    for describe in (_micro_batching, _engine, _averaging):
        rows = grouped(((row, describe(each)), seed) for (row, seed), each in records.items())
        for (row, text), seeds in rows.items():
            if text:
                yield Footnote(f"{row}, {seeds_named(seeds)}", text, is_vital=True)


def _budget(rows: Sequence[Summary]) -> str:
    known = {
        name: each for metric, name in _BUDGET.items() if (each := columns.ratios(rows, metric))
    }
    other = {n: each for n, each in known.items() if any(abs(r - 1) > columns.EQUAL for r in each)}
    equal = [name for name in known if name not in other]
    parts = [f"equal {and_list(equal)}"] if equal else []
    for name, each in other.items():
        low, high = (number(end, 2) for end in (min(each), max(each)))
        span = low if low == high else f"{low} to {high}"
        parts.append(f"{name} {span}{TIMES} the baseline's")
    if any(abs(times - 1) > columns.TOLERANCE for each in known.values() for times in each):
        parts.append(MARKED)
    return "; ".join(parts)


def _matched(
    experiment: Experiment, match: Match, summaries: Sequence[Summary]
) -> Iterator[Footnote]:
    """Yield what rows were matched by, and which are beyond the tolerance as trained after all."""
    applying = [row for row in experiment.rows[1:] if match.applies_to(row.name)]
    missing = [row.name for row in applying if match.via in row.pending]
    solved = [row.name for row in applying if row.chosen.get(match.via) == "matched"]
    others = [row.name for row in experiment.rows[1:] if not match.applies_to(row.name)]
    measured = ", measured by turns with the baseline" if match.on == "time" else ""
    text = (
        f"{match.quantity} equal the baseline's within {100 * match.tolerance:.3g}%{measured}: "
        f"{match.via} was solved for in {and_list(solved) if solved else 'no row'}"
    )
    if len(solved) + len(missing) < len(applying):
        text += "; all other rows are within it as they are"
    text += f"; not matched: {and_list(others)}" if others else ""
    text += f"; not done yet: {and_list(missing)}" if missing else ""
    yield Footnote("matched", text)
    beyond = [
        f"{row.name}: {match.quantity} {percent_change(times - 1)}"
        for row in summaries[1:]
        if match.applies_to(row.name)
        and (times := columns.ratio(row, summaries[0], _MATCHED.get(match.on, ""))) is not None
        and abs(times - 1) > match.tolerance
    ]
    if beyond:
        yield Footnote("not matched as trained", "; ".join(beyond))


def _tuned(experiment: Experiment, tune: Tune) -> Iterator[Footnote]:
    values = tune.values()
    axes = list(zip(labels(list(tune.axes)), values.items(), strict=True))
    grid = f" {TIMES} ".join(
        f"{name} {{{', '.join(map(format_value, axis))}}}" for name, (_, axis) in axes
    )
    candidates = counted(tune.n_candidates, "candidate")
    seeds = f"{counted(len(tune.seeds), 'seed')} ({and_list([str(seed) for seed in tune.seeds])})"
    n_runs = counted(tune.n_candidates * len(tune.seeds), "run")
    text = (
        f"{grid}, the lowest mean NLL on dev for each row by itself, the baseline included: "
        f"{candidates} {TIMES} {seeds} = {n_runs} of full length for each row, none of which is in "
        "the table; values nearly as good as the best may change places with other seeds of tuning"
    )
    if tune.extend:
        text += (
            f"; a row whose best number was the first or the last tried another beyond it, up to "
            f"{counted(tune.extend, 'time')}"
        )
    missing = [row.name for row in experiment.rows if set(row.pending) & set(tune.axes)]
    yield Footnote("tuned", text + (f"; not done yet: {and_list(missing)}" if missing else ""))
    edges = [
        f"{name}: {', '.join(rows)}"
        for name, (path, _) in axes
        if (ends := tune.ends(path))
        and (
            rows := [
                row.name
                for row in experiment.rows
                if row.chosen.get(path) == "tuned" and row.changes[path] in ends
            ]
        )
    ]
    if edges:
        yield Footnote(
            "edge of the grid",
            f"chosen at its first or last value, so that a better one may lie outside: "
            f"{'; '.join(edges)}",
        )


def _close_choices(tune: Tune, results: Results) -> Iterator[Footnote]:
    """Yield which rows might have chosen their second best value with other seeds of tuning.

    The error of a run is that of the table's rows, on dev too; both values share their seeds.
    """
    compared = results.comparison("dev.nll")
    if compared is None or not compared.sd or not results.has_one_tokenizer:
        return
    least = single_value(compared.df) * compared.sd * math.sqrt(2 / len(tune.seeds))
    leads = {row.name: tune.leads[row.name] for row in results.summaries if row.name in tune.leads}
    close = {row: lead for row, lead in leads.items() if lead < least}
    if not close:
        return
    row = min(close, key=lambda name: close[name])
    n = seeds_for(close[row], compared.sd, 1)
    yield Footnote(
        "close choices",
        f"by {counted(len(tune.seeds), 'seed')} of tuning the second best value cannot be told "
        f"from the best, which leads by less than {number(least, LOSS_DECIMALS)} nats (a run's "
        f"error on dev is ± {number(compared.sd, LOSS_DECIMALS)}), for {len(close)} of "
        f"{counted(len(leads), 'row')}: {and_list(list(close))}. To tell those of {row}, the "
        f"closest, takes {f'over {MOST_SEEDS}' if n is None else n} seeds.",
    )


def _partial(results: Results) -> Iterator[Footnote]:
    summaries = results.summaries
    partial = [row for row in summaries if not row.is_complete]
    done = {row.name: seeds for row in partial if (seeds := row.seeds_with("done"))}
    if done:
        of_rows = _named_once((listed(seeds), name) for name, seeds in done.items())
        is_of_all = results.baseline.name in done  # then all rows are compared by least squares
        are_fitted = not results.looks.n_looks and any(  # a look misses no seed
            each.method in ("two-way", "moderated") and (is_of_all or row in done)
            for compared in results.comparisons.values()
            for row, each in compared.differences.items()
        )
        differences = (
            "; the differences of rows that miss seeds are by least squares, which allow for "
            "the seeds' effects on the other rows"
        )
        yield Footnote(
            PARTIAL,
            f"not over all seeds: means are over the runs that are done ({of_rows})"
            f"{differences if are_fitted else ''}.",
            is_vital=True,
        )
    if results.diverged:
        verdict = "no row has a verdict"
        if results.has_verdicts:
            verdict = "the verdict is how many seeds the row won of those that both have"
        yield Footnote(
            DIVERGED,
            f"{row_names(list(results.diverged))}: a row with diverged seeds has no interval, for "
            "the seeds that did not diverge are a selection. A marked difference counts a "
            f"divergence as 0, be it the row's or the baseline's, and {verdict}.",
            is_vital=True,
        )
    if missing := [(str(n), row.name) for row in summaries if (n := row.count("missing"))]:
        yield Footnote("missing runs", _named_once(missing), is_vital=True)


def _named_once(pairs: Iterable[tuple[str, str]]) -> str:
    """Return what is said of rows, as in ``a and b: 1, 2; c: 1``."""
    groups = grouped(pairs).items()
    return "; ".join(f"{row_names(names, MOST_NAMES)}: {said}" for said, names in groups)


def _reasons(summaries: Sequence[Summary]) -> Iterator[Footnote]:
    for summary in summaries:
        errors = summary.errors.items()
        reasons = grouped(((summary.outcomes[seed], reason), seed) for seed, reason in errors)
        for (status, reason), seeds in reasons.items():
            text = " ".join(reason.split())
            if len(text) > _MOST_CHARACTERS:
                text = f"{text[:_MOST_CHARACTERS]} …"
            word = "out of memory" if status == "oom" else status
            of = f"{summary.name}, {seeds_named(seeds)}"
            yield Footnote(of, f"{word}: {text}", is_vital=True)


def _micro_batching(record: Record) -> str:
    divided = record.get("micro_batching")
    if not divided:
        return ""
    if record["status"] != "done":
        return f"tried in micro-batches 1/{divided['factor']} of the usual size too"
    text = (
        f"out of memory with whole batches; done in micro-batches of 1/{divided['n']} of a batch, "
        f"with the same target tokens in every update: {divided['note']}"
    )
    of_probe = record.get("speed", {}).get("micro_batch_factor", 1)
    if not record.get("speed") or of_probe == divided["factor"]:
        return text
    times = divided["factor"] // of_probe
    return f"{text}; speed and memory were measured with parts {times} times as large"


def _engine(record: Record) -> str:
    own, note = record.get("engine", ""), record.get("engine_note")
    measured = record.get("speed", {}).get("engine", own)
    texts = [f"{own} engine, {note}"] if note else []
    if measured != own:
        texts.append(f"speed and memory were measured with the {measured} engine")
    return "; ".join(texts)


def _averaging(record: Record) -> str:
    """Return how many snapshots fewer than asked for were averaged."""
    average = record.get("spec", {}).get("training", {}).get("average", {})
    asked = average.get("last") or average.get("best") or 1
    n = len(record.get("train", {}).get("averaged_steps", ()))
    made = f"training made {counted(n, 'evaluation')}, so that the average is of {n} and not of "
    return f"{made}{asked} snapshots (training.evaluate_every)" if 0 < n < asked else ""


def _columns(results: Results) -> Iterator[Footnote]:
    summaries = results.summaries
    known = {key for summary in summaries for key in summary.metrics}
    has_ppl = "dev.nll" in known and results.has_one_tokenizer
    texts = ["ppl is exp of the mean NLL per target token"] if has_ppl else []
    if TRAIN_SPEED in results.baseline.metrics:
        texts.append(f"train and decode are speeds over the baseline's{_speeds(results.baseline)}")
    if MEMORY in known:
        texts.append("memory is the peak of training")
    if not results.has_one_tokenizer:
        texts.append(
            "tokenizers differ, so that losses are compared in bits per character of the "
            "references and not per token"
        )
        if TRAIN_SPEED in known:
            texts.append("train counts the target tokens of each row's own tokenizer")
    if zeros := columns.sets_of_zeros(results):
        texts.append(f"BLEU on {and_list(zeros)} is 0 in all rows (in the CSV and the JSON)")
    if texts:
        yield Footnote("columns", "; ".join(texts))
    without_ratio = [
        row.name
        for row in summaries[1:]
        if TRAIN_SPEED in row.speeds and row.speeds[TRAIN_SPEED].ratio is None
    ]
    if without_ratio and TRAIN_SPEED in results.baseline.metrics:
        text = "not measured by turns with the baseline, but when the machine may have been faster"
        yield Footnote(
            "speed", f"{row_names(without_ratio)}: {text} or slower, so that there is no ratio"
        )


def _speeds(baseline: Summary) -> str:
    train, decode = baseline.speeds.get(TRAIN_SPEED), baseline.speeds.get(DECODE_SPEED)
    if train is None or decode is None:
        return ""
    return (
        f" ({train.value:,.0f} target tokens and {decode.value:,.0f} sentences per "
        f"second), each row alone on its device, by median polish of {counted(train.n, 'round')} "
        "in which the rows took turns; in brackets the 95% interval of the ratio by itself"
    )
