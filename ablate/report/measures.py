"""The columns of numbers: what a row cost and how well it translates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ablate.analysis import Estimate, Interval, Summary
from ablate.config import Published
from ablate.report.cells import NOTHING, Cell, Column
from ablate.report.numbers import TIMES, decimals_for, decimals_of, number, percent, signed

PARTIAL = "†"
"""Marks a mean over fewer seeds than the experiment has."""

Block = tuple[Column, list[Cell]]
"""A column with its cells, baseline first."""

_BLEU_DECIMALS = 2
_PERPLEXITY_DECIMALS = 2
_EXACT_DECIMALS = 1
_RATIO_DECIMALS = 2


def measures(
    summaries: Sequence[Summary], sets: Sequence[str], published: Published | None = None
) -> list[Block]:
    """Return every column of numbers that some row has a number for.

    Args:
        summaries: the rows, baseline first.
        sets: the test sets; the first is the one whose BLEU is compared with the baseline's.
        published: numbers of others, each to stand right of ours.
    """

    def theirs(measure: str, header: str) -> Block:
        values = [published.of(s.name).get(measure) if published else None for s in summaries]
        return _published(Column(f"published.{measure}", header, "published", rank=2), values)

    bleu = [theirs("bleu", "BLEU"), theirs("bleu_lc_tok", "BLEU lc tok")]
    speed = "speed.train_target_tokens_per_second", "speed.decode_sentences_per_second"
    blocks = [_parameters(summaries)]
    for rank, name in enumerate(sets):
        blocks += _on_test_set(summaries, name, *(bleu if rank == 0 else []))
    blocks += [
        *(bleu if not sets else []),
        _means(summaries, Column("dev.perplexity", "ppl", "dev", rank=2), _PERPLEXITY_DECIMALS),
        theirs("ppl", "ppl"),
        _speed(summaries, Column(speed[0], "train", "tok/s", rank=3)),
        _speed(summaries, Column(speed[1], "decode", "sent/s", rank=4)),
        _memory(summaries, Column("memory.train_peak_mib", "memory", "MiB", rank=5)),
    ]
    return [block for block in blocks if any(cell.value != NOTHING for cell in block[1])]


def difference_key(test_set: str) -> str:
    """Return the key of the column of BLEU differences."""
    return f"test.{test_set}.bleu.difference"


def _on_test_set(summaries: Sequence[Summary], name: str, *published: Block) -> list[Block]:
    """Return the columns of one test set.

    Args:
        summaries: the rows, baseline first.
        name: of the set.
        *published: of the compared set, what others have printed: BLEU, and that of lower-cased
            tokens.
    """
    bleu = Column(f"test.{name}.bleu", "BLEU", name, rank=0 if published else 7)
    lower = Column(f"test.{name}.bleu_lc_tok", "BLEU lc tok", name, rank=2 if published else 9)
    exact = Column(f"test.{name}.exact_match", "exact %", name, rank=8 if published else 10)
    blocks = [_means(summaries, column, _BLEU_DECIMALS) for column in (bleu, lower)]
    if published:
        beside = zip(blocks, published, strict=True)
        blocks = [block for pair in beside for block in pair]
        blocks += [_difference(summaries, name), _interval(summaries, name)]
    return [*blocks, _means(summaries, exact, _EXACT_DECIMALS)]


def _published(column: Column, values: Sequence[float | None]) -> Block:
    """Return what a source prints, with as many decimals as it prints."""
    decimals = decimals_of(value for value in values if value is not None)
    texts = [NOTHING if value is None else number(value, decimals) for value in values]
    return column, [Cell(text) for text in texts]


def _parameters(summaries: Sequence[Summary]) -> Block:
    estimates = [summary.metrics.get("params.total") for summary in summaries]
    unit, name = (1e6, "M") if max(_sizes(estimates), default=0) >= 1e6 else (1e3, "k")
    cells = [_cell(estimate, 2 if name == "M" else 1, unit) for estimate in estimates]
    asides = [_share(estimate, estimates[0]) for estimate in estimates]
    column = Column("params.total", "params", name, rank=1)
    return column, [
        Cell(cell.value, aside=aside) for cell, aside in zip(cells, asides, strict=True)
    ]


def _difference(summaries: Sequence[Summary], test_set: str) -> Block:
    key = f"test.{test_set}.bleu"
    cells = [Cell()]
    for summary in summaries[1:]:
        estimate = summary.differences.get(key)
        value = signed(estimate.mean, _BLEU_DECIMALS) if estimate else NOTHING
        cells.append(Cell(value, mark=_mark(summary, estimate)))
    return Column(difference_key(test_set), "ΔBLEU", test_set), _unless_bare(cells)


def _interval(summaries: Sequence[Summary], test_set: str) -> Block:
    estimates = [summary.differences.get(f"test.{test_set}.bleu") for summary in summaries[1:]]
    cells = [_interval_cell(estimate.student if estimate else None) for estimate in estimates]
    column = Column(f"{difference_key(test_set)}.interval", "95% CI", "of Δ", rank=6)
    return column, _unless_bare([Cell(), *cells])


def _interval_cell(interval: Interval | None) -> Cell:
    if interval is None:
        return Cell(NOTHING)
    low, high = (signed(end, _BLEU_DECIMALS) for end in (interval.low, interval.high))
    return Cell(f"[{low}, {high}]")


def _unless_bare(cells: list[Cell]) -> list[Cell]:
    """Return the cells of a comparison, or a column of nothing where nothing is compared."""
    return (
        cells if any(c.value not in ("", NOTHING) for c in cells) else [Cell(NOTHING)] * len(cells)
    )


def _speed(summaries: Sequence[Summary], column: Column) -> Block:
    """Return a column of speeds: medians of rounds and of their ratios, each ± its deviation."""
    estimates = [summary.metrics.get(column.key) for summary in summaries]
    is_large = max(_sizes(estimates), default=0) >= 10_000
    unit, detail = (1e3, f"k {column.detail}") if is_large else (1.0, column.detail)
    decimals = decimals_for(size / unit for size in _sizes(estimates))
    cells = [
        _speed_cell(summary, summaries[0], column.key, decimals, unit) for summary in summaries
    ]
    return Column(column.key, column.header, detail, rank=column.rank), cells


def _speed_cell(summary: Summary, baseline: Summary, key: str, decimals: int, unit: float) -> Cell:
    estimate = summary.metrics.get(key)
    rounds, ratio = summary.rounds.get(key), summary.ratios.get(key)
    aside = _times(ratio.median, ratio.sd) if ratio else _ratio(estimate, baseline.metrics.get(key))
    if rounds is None:
        return Cell(_cell(estimate, decimals, unit).value, aside=aside)
    spread = "" if rounds.sd is None else number(rounds.sd / unit, decimals)
    return Cell(number(rounds.median / unit, decimals), spread, aside=aside)


def _memory(summaries: Sequence[Summary], column: Column) -> Block:
    estimates = [summary.metrics.get(column.key) for summary in summaries]
    is_large = max(_sizes(estimates), default=0) >= 10_000
    unit, detail, decimals = (1024.0, "GiB", 1) if is_large else (1.0, "MiB", 0)
    cells = [_cell(estimate, decimals, unit) for estimate in estimates]
    return Column(column.key, column.header, detail, rank=column.rank), [
        Cell(cell.value) for cell in cells
    ]


def _means(summaries: Sequence[Summary], column: Column, decimals: int) -> Block:
    estimates = [summary.metrics.get(column.key) for summary in summaries]
    return column, [
        _cell(estimate, decimals, mark=_mark(summary, estimate))
        for summary, estimate in zip(summaries, estimates, strict=True)
    ]


def _cell(estimate: Estimate | None, decimals: int, unit: float = 1.0, mark: str = "") -> Cell:
    if estimate is None:
        return Cell(NOTHING)
    spread = "" if estimate.sd is None else number(estimate.sd / unit, decimals)
    return Cell(number(estimate.mean / unit, decimals), spread, mark=mark)


def _mark(summary: Summary, estimate: Estimate | None) -> str:
    return PARTIAL if estimate and estimate.n < len(summary.outcomes) else ""


def _share(estimate: Estimate | None, baseline: Estimate | None) -> str:
    if estimate is None or baseline is None or estimate is baseline:
        return ""
    return percent(estimate.mean / baseline.mean - 1)


def _ratio(estimate: Estimate | None, baseline: Estimate | None) -> str:
    if estimate is None or baseline is None or estimate is baseline:
        return ""
    return _times(estimate.mean / baseline.mean)


def _times(ratio: float, sd: float | None = None) -> str:
    spread = "" if sd is None else f" ± {number(sd, _RATIO_DECIMALS)}"
    return f"{number(ratio, _RATIO_DECIMALS)}{spread}{TIMES}"


def _sizes(estimates: Iterable[Estimate | None]) -> list[float]:
    known = [estimate.mean for estimate in estimates if estimate is not None]
    return [mean for mean in known if math.isfinite(mean)]
