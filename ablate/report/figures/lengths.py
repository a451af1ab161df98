"""Differences in BLEU by the length of the sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ablate.analysis.measures import Sentences
from ablate.analysis.sentences import bleu
from ablate.analysis.statistics import Estimate, Interval
from ablate.measuring import SentenceStatistics
from ablate.report.figures import style
from ablate.report.figures.differences import divergence
from ablate.report.figures.style import Drawing, add_legend, draw_grid, look, panel_title
from ablate.report.results import Results
from ablate.report.translations import source_lengths
from ablate.report.values import interval_ends

_MOST_BINS = 5
_LEAST_REACH = 1.0  # BLEU, of the axis to each side of 0
_FEWEST_SENTENCES = 40  # of a bin
_TITLE = "Differences in BLEU by the length of the sentence"
_LEGEND = (
    "BLEU of the row minus that of the baseline on the sentences of each bin, mean over seeds; "
    "bars: 95% t interval of the paired differences, of each bin by itself"
)

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class _Bin:
    low: int  # length of the shortest
    high: int  # length of the longest
    rows: Rows  # their indices in the test set


@dataclass(frozen=True)
class _Point:
    bin_: _Bin
    mean: float
    interval: Interval | None
    n: int


def draw_lengths(
    results: Results, sentences: Sentences, sources: Sequence[str] = ()
) -> Drawing | None:
    """Draw the differences in BLEU by length, a panel per row; None without two bins."""
    first = results.sets[0] if results.sets else ""
    statistics = {run: of[first] for run, of in sentences.items() if first in of}
    unit, bins = "", []
    if statistics:
        unit, lengths = "tokens of the reference", next(iter(statistics.values())).bleu[:, 1]
        if len(sources) == len(lengths):
            known, word = source_lengths(sources)
            unit, lengths = f"{word} of the source", np.array(known, dtype=np.int64)
        bins = bins_of(lengths)
    if len(bins) < 2:
        return None
    baseline, *rows = [summary.name for summary in results.summaries]
    partial = results.diverged.keys()
    points = {
        row: _points(row, baseline, statistics, bins, has_intervals=not partial & {row, baseline})
        for row in rows
    }
    points = {row: of_row for row, of_row in points.items() if of_row}
    if not points:
        return None
    with look():
        n_lines = math.ceil(len(points) / style.PANELS_PER_LINE)
        n_columns = min(len(points), style.PANELS_PER_LINE)
        size = max(2.3 * n_columns + 0.5, 5.5), 1.9 * n_lines + 0.7
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(n_lines, n_columns, sharey=True, squeeze=False)
        for panel, (row, of_row) in zip(axes.flat, points.items(), strict=False):
            _panel(panel, ", ".join(filter(None, (row, divergence(results, row)))), of_row)
        low, high = axes[0, 0].get_ylim()
        axes[0, 0].set_ylim(min(low, -_LEAST_REACH), max(high, _LEAST_REACH))  # they share it
        style.remove_empty(axes, len(points))
        figure.supylabel("difference in BLEU", size=8, color=style.SOFT)
        add_legend(figure, f"bins: {unit}; {_LEGEND}")
        numbers = [
            {
                "row": row,
                "length.low": point.bin_.low,
                "length.high": point.bin_.high,
                "unit": unit,
                "sentences": len(point.bin_.rows),
                "difference": point.mean,
                **interval_ends(point.interval),
                "seeds": point.n,
            }
            for row, of_row in points.items()
            for point in of_row
        ]
        return Drawing("lengths", _TITLE, figure, numbers)


def bins_of(lengths: Rows) -> list[_Bin]:
    """Divide sentences by length into bins of about as many each; equal lengths stay together."""
    n_bins = min(_MOST_BINS, len(lengths) // _FEWEST_SENTENCES)
    if n_bins < 1:
        return []
    ends = np.unique(np.quantile(lengths, np.linspace(0, 1, n_bins + 1)[1:], method="lower"))
    which = np.searchsorted(ends, lengths)
    return [
        _Bin(int(lengths[rows].min()), int(lengths[rows].max()), rows)
        for rows in (np.flatnonzero(which == number) for number in range(len(ends)))
        if len(rows)
    ]


def _points(
    row: str,
    baseline: str,
    statistics: dict[tuple[str, int], SentenceStatistics],
    bins: Sequence[_Bin],
    *,
    has_intervals: bool,
) -> list[_Point]:
    seeds = [seed for name, seed in statistics if name == row and (baseline, seed) in statistics]
    points = []

    def bleu_of(run: tuple[str, int], bin_: _Bin) -> float:
        return float(bleu(statistics[run].bleu[bin_.rows].sum(axis=0)))

    for bin_ in bins if seeds else ():
        pairs = Estimate({s: bleu_of((row, s), bin_) - bleu_of((baseline, s), bin_) for s in seeds})
        interval = None
        if has_intervals and pairs.sd is not None:
            interval = Interval.of_mean(pairs.mean, pairs.sd, pairs.n)
        points.append(_Point(bin_, pairs.mean, interval, pairs.n))
    return points


def _panel(axes: Axes, title: str, points: Sequence[_Point]) -> None:
    axes.axhline(0, color=style.INK, linewidth=0.8)
    for at, point in enumerate(points):
        if point.interval is not None:
            ends = [point.interval.low, point.interval.high]
            axes.plot([at, at], ends, color=style.COLOURS[0], linewidth=1.2)
        axes.plot([at], [point.mean], "o", color=style.COLOURS[0], markersize=4)
    ranges = [dict.fromkeys((p.bin_.low, p.bin_.high)) for p in points]  # one length, or two
    lengths = ["\u2013".join(map(str, ends)) for ends in ranges]
    labels = [f"{text}\nn {len(p.bin_.rows)}" for text, p in zip(lengths, points, strict=True)]
    axes.set_xticks(range(len(points)), labels, fontsize=6.5)
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_title(panel_title(title), loc="left", fontsize=8.5, color=style.INK)
    draw_grid(axes, "y")
