"""The columns of a table: what rows change, how well they translate, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ablate.analysis.comparison import Difference
from ablate.analysis.summary import TRAIN_FLOPS, Summary
from ablate.config import BASELINE, Row, value_at
from ablate.config.merge import excluded_by
from ablate.report.results import DECODE_SPEED, MEMORY, TRAIN_SPEED, Results
from ablate.report.table import Cell, Column
from ablate.report.values import (
    NOTHING,
    TIMES,
    format_value,
    interval_text,
    measure_decimals,
    measure_name,
    number,
    percent_change,
    signed,
)

# marks: numbers over fewer seeds than there are; an interval of a row's own; diverged runs; what a
# row had `TOLERANCE` more or less of than the baseline
PARTIAL, APART, DIVERGED, BEYOND, SMALL = "†", "‡", "§", "¶", "°"

STEPS, TOKENS = "train.steps", "train.target_tokens"
TOLERANCE = 0.05
EQUAL = 1e-3  # what differs from the baseline by a smaller share is called equal

Block = tuple[Column, list[Cell]]  # a column with its cells, baseline first

_RATIO_DECIMALS = 2
_OF_INTERVAL, _OF_COST, _OF_RUNS, _OF_LOSS = 1, 2, 3, 4  # ranks
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def changed_paths(changes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return every path that some row changes, in the order of the rows."""
    return list(dict.fromkeys(path for change in changes for path in change))


def shown_paths(rows: Sequence[Row]) -> list[str]:
    """Return every path that some row changes, and those that the baseline loses by that."""
    baseline = rows[0].spec.model_dump(mode="json")
    paths = changed_paths(row.changes for row in rows)
    others = [other for path in paths for other in excluded_by(path)]
    return list(dict.fromkeys([*paths, *(o for o in others if value_at(baseline, o) is not None)]))


def change_cells(rows: Sequence[Row], path: str) -> list[Cell]:
    """Return what each row has at a path.

    A cell is empty as the baseline's, a question mark if the value is still to be chosen, and a
    dash where the row has another part, or another key, and so no such option.
    """
    baseline = value_at(rows[0].spec.model_dump(mode="json"), path)

    def cell(row: Row) -> Cell:
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

    return list(map(cell, rows))


def quality(results: Results) -> list[Block]:
    """Return the columns that a row is judged by."""
    theirs = published(results, "bleu", "BLEU")
    if results.bleu is None or results.loss is None:
        return known([_done(results), theirs])
    return known(
        [
            _done(results),
            means(results, Column(results.bleu, "BLEU", results.sets[0])),
            theirs,
            _differences(results, results.bleu),
            _intervals(results, results.bleu, rank=_OF_INTERVAL),
            _verdicts(results, results.bleu),
            _differences(results, results.loss, rank=_OF_LOSS),
            _intervals(results, results.loss, rank=_OF_LOSS),
        ]
    )


def costs(results: Results) -> list[Block]:
    """Return the columns of what a row costs."""
    budgets = [
        amount(results, metric, name)
        for metric, name in ((STEPS, "steps"), (TOKENS, "tokens"))
        if any(abs(times - 1) > EQUAL for times in ratios(results.summaries, metric))
    ]
    return known(
        [
            parameters(results),
            published(results, "params", "params"),
            amount(results, TRAIN_FLOPS, "FLOPs", has_aside=True),
            *budgets,
            _speeds(results, TRAIN_SPEED, "train"),
            _speeds(results, DECODE_SPEED, "decode"),
            _memory(results),
        ]
    )


def more(results: Results) -> list[Block]:
    """Return the columns of the second block: perplexities, new sentences, other test sets."""
    ppl = published(results, "ppl", "ppl")
    lower = published(results, "bleu_lc_tok", "BLEU lc tok")
    if results.bleu is None:
        return known([ppl, lower])
    first, *others = results.sets
    blocks = [
        *losses(results, first),
        ppl,
        means(results, Column(f"{results.bleu}_lc_tok", "BLEU lc tok", first)),
        lower,
        _intervals(results, results.bleu, is_of_sentences=True),
    ]
    metrics = [(f"test.{first}.{name}", first, 0) for name in results.metrics]
    zeros = sets_of_zeros(results)
    metrics += [(f"test.{name}.bleu", name, 1) for name in others if name not in zeros]
    for metric, name, rank in metrics:
        blocks += [
            means(results, Column(metric, measure_name(metric), name, rank=rank)),
            _differences(results, metric, rank=rank),
            _intervals(results, metric, rank=rank),
        ]
    return known(blocks)


def sets_of_zeros(results: Results) -> list[str]:
    """Return the test sets, the first apart, on which every row has 0 BLEU: they have no column."""
    metrics = [row.metrics for row in results.summaries]
    return [
        name
        for name in results.sets[1:]
        if not any(of[key].mean for of in metrics if (key := f"test.{name}.bleu") in of)
    ]


def known(blocks: Iterable[Block]) -> list[Block]:
    """Return the columns that hold anything."""
    return [block for block in blocks if any(c.value not in ("", NOTHING) for c in block[1])]


def means(results: Results, column: Column) -> Block:
    """Return the means over the runs that are done."""

    def cell(row: Summary) -> Cell:
        estimate = row.metrics.get(column.key)
        if estimate is None:
            return Cell(NOTHING)
        mark = PARTIAL if estimate.n < len(row.outcomes) else ""
        return Cell(number(estimate.mean, measure_decimals(column.key)), mark=mark)

    return column, list(map(cell, results.summaries))


def losses(results: Results, test_set: str) -> list[Block]:
    """Return the perplexities, or where tokenizers differ the bits per character."""
    if results.has_one_tokenizer:
        both = (f"test.{test_set}", test_set), ("dev", "dev")
        return [means(results, Column(f"{of}.perplexity", "ppl", name)) for of, name in both]
    return [means(results, Column(results.loss or "", "bits/char", test_set))]


def ratio(row: Summary, baseline: Summary, metric: str) -> float | None:
    """Return how many times as much of a metric a row had as the baseline, if both are known."""
    ours, theirs = row.metrics.get(metric), baseline.metrics.get(metric)
    if ours is None or theirs is None or not theirs.mean:
        return None
    return ours.mean / theirs.mean


def ratios(rows: Sequence[Summary], metric: str) -> list[float]:
    """Return the ratios of all rows but the baseline that are known and finite."""
    each = (ratio(row, rows[0], metric) for row in rows[1:])
    return [times for times in each if times is not None and math.isfinite(times)]


def parameters(results: Results) -> Block:
    """Return the numbers of parameters, with what they are more or less than the baseline's."""
    unit, name, decimals = _unit_of_parameters(results)
    cells = []
    for row in results.summaries:
        each, times = row.metrics.get("params.total"), ratio(row, results.baseline, "params.total")
        aside = "" if times is None else percent_change(times - 1)
        cells.append(Cell(number(each.mean / unit, decimals) if each else NOTHING, aside))
    return Column("params.total", "params", name, rank=_OF_RUNS), cells


def amount(results: Results, metric: str, header: str, *, has_aside: bool = False) -> Block:
    """Return how much of something each row had in all of its training, in a fitting unit."""
    estimates = [row.metrics.get(metric) for row in results.summaries]
    largest = max((each.mean for each in estimates if each), default=0)
    fitting = [(name, size) for name, size in _UNITS.items() if largest >= size]
    name, unit = fitting[-1] if fitting and metric != STEPS else ("", 1.0)
    cells = []
    for row, each in zip(results.summaries, estimates, strict=True):
        times = ratio(row, results.baseline, metric)
        share = 0.0 if times is None else abs(times - 1)
        is_other = has_aside and share > EQUAL
        aside = f"{number(times or 0, _RATIO_DECIMALS)}{TIMES}" if is_other else ""
        value = NOTHING
        if each:
            value = number(each.mean / unit, 1) if unit > 1 else f"{each.mean:,.0f}"
        cells.append(Cell(value, aside, BEYOND if share > TOLERANCE else ""))
    return Column(metric, header, name, rank=_OF_RUNS), cells


def published(results: Results, measure: str, header: str) -> Block:
    """Return what a source prints, with as many decimals as it prints; parameters in our unit."""
    unit, name, _ = _unit_of_parameters(results) if measure == "params" else (1.0, "", 0)
    values = {row: value / unit for row, value in _published(results, measure).items()}
    written = [repr(float(value)).partition(".")[2] for value in values.values()]
    decimals = max((len(text) for text in written if text != "0"), default=0)
    texts = [
        number(values[row.name], decimals) if row.name in values else NOTHING
        for row in results.summaries
    ]
    column = Column(f"published.{measure}", header, f"{name} published".strip(), rank=_OF_RUNS)
    return column, list(map(Cell, texts))


def _done(results: Results) -> Block:
    cells = []
    for row in results.summaries:
        mark = DIVERGED if row.count("diverged") else ""
        cells.append(Cell(f"{row.count('done')}/{len(row.outcomes)}", mark=mark))
    is_whole = all(row.is_complete for row in results.summaries)
    return Column("done", "done", rank=_OF_RUNS if is_whole else _OF_INTERVAL), cells


def _differences(results: Results, metric: str, *, rank: int = 0) -> Block:
    def cell(row: Summary, each: Difference) -> Cell:
        if each.estimate is None:
            return Cell(NOTHING)
        mark = PARTIAL if each.n < len(row.outcomes) else ""
        mark = DIVERGED if each.method == "divergence as 0" else mark
        return Cell(signed(each.estimate, measure_decimals(metric)), mark=mark)

    key, header = f"{metric}.difference", f"Δ{measure_name(metric)}"
    return Column(key, header, metric.split(".")[1], rank=rank), _compared(results, metric, cell)


def _intervals(
    results: Results, metric: str, *, rank: int = 0, is_of_sentences: bool = False
) -> Block:
    """Return the simultaneous intervals, or those that hold for new test sentences too."""

    def cell(_: Summary, each: Difference) -> Cell:
        interval = each.with_sentences if is_of_sentences else each.simultaneous
        mark = APART if interval and each.method == "paired" else ""
        return Cell(interval_text(interval, measure_decimals(metric)), mark=mark)

    kind, detail = "interval", "of Δ"
    if is_of_sentences:
        kind = "with_sentences"
        detail = f"Δ{measure_name(metric)} {metric.split('.')[1]}, new sentences"
    column = Column(f"{metric}.difference.{kind}", "95% CI", detail, rank=rank)
    return column, _compared(results, metric, cell)


def _verdicts(results: Results, metric: str) -> Block:
    def cell(row: Summary, each: Difference) -> Cell:
        if not results.has_verdicts:
            return Cell(NOTHING)
        if each.method == "divergence as 0":
            return Cell(f"won {each.n_won} of {each.n}")
        verdict = str(results.verdict(row.name, metric) or NOTHING)
        return Cell(verdict, mark=SMALL if results.may_be_negligible(row.name, metric) else "")

    band = f"±{results.negligible.bleu:g} BLEU"
    return Column("verdict", "verdict", band, kind="verdict"), _compared(results, metric, cell)


def _compared(
    results: Results, metric: str, cell: Callable[[Summary, Difference], Cell]
) -> list[Cell]:
    """Return a cell for each row that can be compared, and an empty one for the baseline."""
    cells = [Cell()]
    for row in results.summaries[1:]:
        difference = results.difference(row.name, metric)
        cells.append(cell(row, difference) if difference else Cell(NOTHING))
    return cells


def _unit_of_parameters(results: Results) -> tuple[float, str, int]:
    """Return the unit, its name and the decimals that fit our largest row; theirs before ours."""
    estimates = [row.metrics.get("params.total") for row in results.summaries]
    ours = [each.mean for each in estimates if each]
    largest = max(ours or _published(results, "params").values(), default=0)
    return (1e6, "M", 2) if largest >= 1e6 else (1e3, "k", 1)


def _published(results: Results, measure: str) -> dict[str, float]:
    if results.published is None:
        return {}
    of_rows = {row.name: results.published.of(row.name) for row in results.summaries}
    return {name: values[measure] for name, values in of_rows.items() if measure in values}


def _speeds(results: Results, metric: str, header: str) -> Block:
    cells = []
    for row in results.summaries:
        speed, aside = row.speeds.get(metric), ""
        if speed is None or row is results.baseline:  # or measured once, before rows took turns
            times = ratio(row, results.baseline, metric)
        else:
            times = speed.ratio
            if speed.interval:
                ends = (speed.interval.low, speed.interval.high)
                aside = " to ".join(number(end, _RATIO_DECIMALS) for end in ends)
        cells.append(Cell(NOTHING if times is None else number(times, _RATIO_DECIMALS), aside))
    return Column(metric, header, f"{TIMES} speed", rank=_OF_COST), cells


def _memory(results: Results) -> Block:
    estimates = [row.metrics.get(MEMORY) for row in results.summaries]
    is_large = max((each.mean for each in estimates if each), default=0) >= 10_000
    unit, detail, decimals = (1024.0, "GiB", 1) if is_large else (1.0, "MiB", 0)
    texts = [number(each.mean / unit, decimals) if each else NOTHING for each in estimates]
    return Column(MEMORY, "memory", detail, rank=_OF_COST), list(map(Cell, texts))
