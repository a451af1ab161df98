"""The columns of numbers: how well a row translates, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ablate.analysis import TRAIN_FLOPS, Difference, Interval, Summary
from ablate.report.budget import BEYOND, EQUAL, STEPS, TOKENS, differs, is_beyond, ratio
from ablate.report.cells import NOTHING, Cell, Column
from ablate.report.numbers import TIMES, decimals_of, number, percent_change, signed
from ablate.report.results import DECODE_SPEED, MEMORY, TRAIN_SPEED, Results

PARTIAL, APART, DIVERGED = "†", "‡", "§"
"""Mark: numbers over fewer seeds than there are; an interval of a row's own; diverged runs."""

Block = tuple[Column, list[Cell]]
"""A column with its cells, baseline first."""

BLEU_DECIMALS, LOSS_DECIMALS = 1, 3
_DECIMALS = {"nll": LOSS_DECIMALS, "bits_per_character": LOSS_DECIMALS, "perplexity": 2}
_RATIO_DECIMALS = 2
_OF_INTERVAL, _OF_COST, _OF_RUNS, _OF_LOSS = 1, 2, 3, 4  # ranks
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def quality(results: Results) -> list[Block]:
    """Return the columns that a row is judged by."""
    theirs = published(results, "bleu", "BLEU")
    if results.bleu is None or results.loss is None:
        return known([_done(results), theirs])
    column = Column(results.bleu, "BLEU", results.sets[0])
    return known(
        [
            _done(results),
            means(results, column),
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
    return known(
        [
            parameters(results),
            published(results, "params", "params"),
            amount(results, TRAIN_FLOPS, "FLOPs", has_aside=True),
            *(
                amount(results, metric, name)
                for metric, name in ((STEPS, "steps"), (TOKENS, "tokens"))
                if differs(results.summaries, metric)
            ),
            _speeds(results, TRAIN_SPEED, "train"),
            _speeds(results, DECODE_SPEED, "decode"),
            _memory(results),
        ]
    )


def more(results: Results) -> list[Block]:
    """Return the columns of the second block: perplexities, new sentences, other test sets."""
    theirs = [published(results, *of) for of in (("ppl", "ppl"), ("bleu_lc_tok", "BLEU lc tok"))]
    if results.bleu is None:
        return known(theirs)
    first, *others = results.sets
    lower = Column(f"{results.bleu}_lc_tok", "BLEU lc tok", first)
    blocks = [
        *losses(results, first),
        theirs[0],
        means(results, lower),
        theirs[1],
        _intervals(results, results.bleu, is_of_sentences=True),
    ]
    for name in results.metrics:
        metric = f"test.{first}.{name}"
        blocks.append(means(results, Column(metric, measure_name(metric), first)))
        blocks.append(_differences(results, metric))
        blocks.append(_intervals(results, metric))
    zeros = sets_of_zeros(results)
    for name in others:
        if name in zeros:
            continue
        metric = f"test.{name}.bleu"
        blocks.append(means(results, Column(metric, "BLEU", name, rank=1)))
        blocks.append(_differences(results, metric, rank=1))
        blocks.append(_intervals(results, metric, rank=1))
    return known(blocks)


def sets_of_zeros(results: Results) -> list[str]:
    """Return the test sets, the first apart, on which every row has 0 BLEU: they have no column."""

    def has_score(name: str) -> bool:
        key = f"test.{name}.bleu"
        return any(row.metrics[key].mean for row in results.summaries if key in row.metrics)

    return [name for name in results.sets[1:] if not has_score(name)]


def known(blocks: Iterable[Block]) -> list[Block]:
    """Return the columns that hold anything."""
    return [block for block in blocks if any(c.value not in ("", NOTHING) for c in block[1])]


def _done(results: Results) -> Block:
    cells = [
        Cell(
            f"{row.count('done')}/{len(row.outcomes)}",
            mark=DIVERGED if row.count("diverged") else "",
        )
        for row in results.summaries
    ]
    is_whole = all(row.is_complete for row in results.summaries)
    return Column("done", "done", rank=_OF_RUNS if is_whole else _OF_INTERVAL), cells


def means(results: Results, column: Column) -> Block:
    """Return the means over the runs that are done."""
    cells = []
    for row in results.summaries:
        estimate = row.metrics.get(column.key)
        value = NOTHING if estimate is None else number(estimate.mean, measure_decimals(column.key))
        is_partial = estimate is not None and estimate.n < len(row.outcomes)
        cells.append(Cell(value, mark=PARTIAL if is_partial else ""))
    return column, cells


def losses(results: Results, test_set: str) -> list[Block]:
    """Return the perplexities, or where tokenizers differ the bits per character."""
    if results.has_one_tokenizer:
        both = (f"test.{test_set}", test_set), ("dev", "dev")
        return [means(results, Column(f"{of}.perplexity", "ppl", name)) for of, name in both]
    return [means(results, Column(results.loss or "", "bits/char", test_set))]


def _differences(results: Results, metric: str, *, rank: int = 0) -> Block:
    def cell(row: Summary, each: Difference) -> Cell:
        if each.estimate is None:
            return Cell(NOTHING)
        mark = PARTIAL if each.n < len(row.outcomes) else ""
        mark = DIVERGED if each.method == "divergence as 0" else mark
        return Cell(signed(each.estimate, measure_decimals(metric)), mark=mark)

    column = Column(
        f"{metric}.difference", f"Δ{measure_name(metric)}", metric.split(".")[1], rank=rank
    )
    return column, _compared(results, metric, cell)


def _intervals(
    results: Results, metric: str, *, rank: int = 0, is_of_sentences: bool = False
) -> Block:
    """Return the simultaneous intervals, or those that hold for new test sentences too."""

    def cell(_: Summary, each: Difference) -> Cell:
        interval = each.with_sentences if is_of_sentences else each.simultaneous
        mark = APART if interval and each.method in ("paired", "moderated") else ""
        return Cell(interval_text(interval, measure_decimals(metric)), mark=mark)

    key = f"{metric}.difference.{'with_sentences' if is_of_sentences else 'interval'}"
    detail = f"Δ{measure_name(metric)} {metric.split('.')[1]}, new sentences"
    column = Column(key, "95% CI", detail if is_of_sentences else "of Δ", rank=rank)
    return column, _compared(results, metric, cell)


def _verdicts(results: Results, metric: str) -> Block:
    def cell(row: Summary, each: Difference) -> Cell:
        if not results.has_verdicts:
            return Cell(NOTHING)
        if each.method == "divergence as 0":
            return Cell(f"won {each.n_won} of {each.n}")
        return Cell(str(results.verdict(row.name, metric) or NOTHING))

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


def parameters(results: Results) -> Block:
    """Return the numbers of parameters, with what they are more or less than the baseline's."""
    estimates = [row.metrics.get("params.total") for row in results.summaries]
    unit, name, decimals = _unit_of_parameters(results)
    cells = []
    for row, each in zip(results.summaries, estimates, strict=True):
        times = ratio(row, results.baseline, "params.total")
        aside = "" if times is None else percent_change(times - 1)
        cells.append(Cell(number(each.mean / unit, decimals) if each else NOTHING, aside))
    return Column("params.total", "params", name, rank=_OF_RUNS), cells


def _unit_of_parameters(results: Results) -> tuple[float, str, int]:
    """Return the unit, its name and the decimals that fit our largest row; theirs before ours."""
    estimates = [row.metrics.get("params.total") for row in results.summaries]
    ours = [each.mean for each in estimates if each]
    largest = max(ours or _published(results, "params").values(), default=0)
    return (1e6, "M", 2) if largest >= 1e6 else (1e3, "k", 1)


def amount(results: Results, metric: str, header: str, *, has_aside: bool = False) -> Block:
    """Return how much of something each row had in all of its training, in a fitting unit."""
    estimates = [row.metrics.get(metric) for row in results.summaries]
    largest = max((each.mean for each in estimates if each), default=0)
    fitting = [(name, size) for name, size in _UNITS.items() if largest >= size]
    name, unit = fitting[-1] if fitting and metric != STEPS else ("", 1.0)
    cells = []
    for row, each in zip(results.summaries, estimates, strict=True):
        times = ratio(row, results.baseline, metric)
        is_other = has_aside and times is not None and abs(times - 1) > EQUAL
        aside = f"{number(times or 0, _RATIO_DECIMALS)}{TIMES}" if is_other else ""
        mark = BEYOND if is_beyond(row, results.baseline, metric) else ""
        value = NOTHING
        if each:
            value = number(each.mean / unit, 1) if unit > 1 else f"{each.mean:,.0f}"
        cells.append(Cell(value, aside, mark))
    return Column(metric, header, name, rank=_OF_RUNS), cells


def _speeds(results: Results, metric: str, header: str) -> Block:
    """Return how many times as fast as the baseline each row is."""
    cells = []
    for row in results.summaries:
        speed, measured = row.speeds.get(metric), ratio(row, results.baseline, metric)
        if row is results.baseline:
            cells.append(Cell(number(1, _RATIO_DECIMALS) if metric in row.metrics else NOTHING))
        elif speed is not None and speed.ratio is not None:
            aside = _span(speed.interval) if speed.interval else ""
            cells.append(Cell(number(speed.ratio, _RATIO_DECIMALS), aside))
        elif speed is None and measured is not None:  # measured once, before rows took turns
            cells.append(Cell(number(measured, _RATIO_DECIMALS)))
        else:
            cells.append(Cell(NOTHING))
    return Column(metric, header, f"{TIMES} speed", rank=_OF_COST), cells


def _memory(results: Results) -> Block:
    estimates = [row.metrics.get(MEMORY) for row in results.summaries]
    is_large = max((each.mean for each in estimates if each), default=0) >= 10_000
    unit, detail, decimals = (1024.0, "GiB", 1) if is_large else (1.0, "MiB", 0)
    texts = [number(each.mean / unit, decimals) if each else NOTHING for each in estimates]
    return Column(MEMORY, "memory", detail, rank=_OF_COST), [Cell(text) for text in texts]


def published(results: Results, measure: str, header: str) -> Block:
    """Return what a source prints, with as many decimals as it prints; parameters in our unit."""
    unit, name, _ = _unit_of_parameters(results) if measure == "params" else (1.0, "", 0)
    values = {row: value / unit for row, value in _published(results, measure).items()}
    decimals = decimals_of(values.values())
    texts = [
        number(values[row.name], decimals) if row.name in values else NOTHING
        for row in results.summaries
    ]
    column = Column(f"published.{measure}", header, f"{name} published".strip(), rank=_OF_RUNS)
    return column, [Cell(text) for text in texts]


def _published(results: Results, measure: str) -> dict[str, float]:
    """Return the published values of a measure by row, of the rows that have one."""
    if results.published is None:
        return {}
    of_rows = {row.name: results.published.of(row.name) for row in results.summaries}
    return {name: values[measure] for name, values in of_rows.items() if measure in values}


def measure_name(metric: str) -> str:
    """Return what the header of a column calls a score or a loss."""
    names = {
        "bleu": "BLEU",
        "bleu_lc_tok": "BLEU lc tok",
        "nll": "NLL",
        "chrf": "chrF",
        "bits_per_character": "bits/char",
    }
    kind = metric.rpartition(".")[2]
    return names.get(kind, kind)


def measure_decimals(metric: str) -> int:
    """Return with how many decimals a score or a loss is written."""
    return _DECIMALS.get(metric.rpartition(".")[2], BLEU_DECIMALS)


def interval_text(interval: Interval | None, decimals: int) -> str:
    """Write an interval of a difference; a dash where there is none."""
    if interval is None:
        return NOTHING
    return f"[{signed(interval.low, decimals)}, {signed(interval.high, decimals)}]"


def _span(interval: Interval) -> str:
    low, high = (number(end, _RATIO_DECIMALS) for end in (interval.low, interval.high))
    return f"{low} to {high}"
