"""A forest plot: every row's difference from the baseline, with intervals and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablate.analysis.comparison import Difference
from ablate.analysis.measures import Verdict, higher_is_better
from ablate.analysis.statistics import Interval, paired_differences
from ablate.report.figures import style
from ablate.report.figures.style import Drawing, add_legend, look, names_width
from ablate.report.results import Results
from ablate.report.values import interval_ends, of_seeds

FACES = {  # marker, edge and inside: verdicts can be told apart without colours
    Verdict.BETTER: ("^", style.COLOURS[0], style.COLOURS[0]),
    Verdict.WORSE: ("v", style.COLOURS[1], style.COLOURS[1]),
    Verdict.NO_DIFFERENCE: ("s", style.SOFT, style.SOFT),
    Verdict.CANNOT_TELL: ("o", style.INK, "white"),
    Verdict.SAME: ("s", style.SOFT, style.SOFT),
    None: ("D", style.SOFT, "white"),
}
_TITLE = "Differences from the baseline, with intervals and seeds"
_LEGEND = (
    "thick: 95% interval of the row by itself; thin: of all rows at once; dots: seeds; shaded: "
    "negligible; \u25b2 better, \u25bc worse, \u25a0 no difference that matters, or none; "
    "\u25cb cannot tell, \u25c7 none of these"
)


_OF_LOOKS = "; fainter, from above: at earlier looks"
_CUT = "; an interval that reaches the edge goes on"
_STEP = 0.09  # between the intervals of two looks, in rows
_WIDEST = 20  # times the median; a wider interval would make all others too small to see


@dataclass(frozen=True)
class _Line:
    row: str
    difference: Difference
    verdict: Verdict | None
    seeds: Mapping[int, float]
    earlier: Mapping[int, Interval]  # by the number of seeds of an earlier look


def draw_differences(results: Results) -> Drawing | None:
    """Draw a panel for BLEU and one for the loss; return None if no row can be compared."""
    metrics = [metric for metric in (results.bleu, results.loss) if results.comparison(metric)]
    panels = {metric: list(_lines(results, metric)) for metric in metrics if metric}
    if not any(panels.values()):
        return None
    names = [summary.name for summary in results.summaries[1:]]
    numbers = [_numbers(metric, line) for metric, lines in panels.items() for line in lines]
    with look():
        width = 4.3 * len(panels) + max(1.2, 0.4 + names_width(names, 9))
        figure = Figure(figsize=(width, 0.3 * len(names) + 1.5), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for panel, (metric, lines) in zip(axes, panels.items(), strict=True):
            _panel(panel, results, metric, lines, names)
        has_looks = any(line.earlier for lines in panels.values() for line in lines)
        is_cut = any(map(_limits, panels.values()))
        add_legend(figure, _LEGEND + _OF_LOOKS * has_looks + _CUT * is_cut)
        return Drawing("differences", _TITLE, figure, numbers)


def divergence(results: Results, name: str) -> str:
    """Return how a row or the baseline diverged, to be read in place of the row's difference.

    A difference that counts divergences as 0 BLEU would make all others too small to see, and an
    NLL without them is that of a selection.
    """
    row = next(row for row in results.summaries if row.name == name)
    if n := row.count("diverged"):
        return f"diverged with {of_seeds(n, len(row.outcomes))}"
    return "the baseline diverged" if results.baseline.count("diverged") else ""


def _lines(results: Results, metric: str) -> Iterator[_Line]:
    baseline = results.baseline.metrics.get(metric)
    for summary in results.summaries[1:]:
        difference = results.difference(summary.name, metric)
        if difference is None or difference.estimate is None:
            continue
        own = summary.metrics.get(metric)
        seeds = paired_differences(own.values, baseline.values) if own and baseline else {}
        verdict = results.verdict(summary.name, metric)
        earlier = dict(_earlier(results, metric, summary.name))
        yield _Line(summary.name, difference, verdict, seeds, earlier)


def _earlier(results: Results, metric: str, row: str) -> Iterator[tuple[int, Interval]]:
    """Yield the intervals of a row at the looks before its last."""
    staged = (each[metric] for each in results.looks.staged if metric in each)
    of_row = [compared.differences.get(row) for compared in staged]
    known = [each.simultaneous for each in of_row if each is not None]
    for n, interval in zip(results.looks.planned, known[:-1], strict=False):
        if interval is not None:
            yield n, interval


def _panel(axes: Axes, results: Results, metric: str, lines: list[_Line], names: list[str]) -> None:
    kind = metric.rpartition(".")[2]
    style.set_up_lines(axes, names, dict(results.negligible).get(kind))
    axes.axvline(0, color=style.INK, linewidth=0.8, zorder=1)
    known = {line.row: line for line in lines}
    for y, name in enumerate(names):
        remark = divergence(results, name)
        if name in known:
            _draw(axes, known[name], y, has_mark=not remark)
        if remark or name not in known:
            style.write_at_0(axes, y, remark or "no result")
    if limits := _limits(lines):
        axes.set_xlim(*limits)
    what = {"bleu": "BLEU", "nll": "test NLL, nats per token"}.get(kind, "bits per character")
    better = "right" if higher_is_better(metric) else "left"
    axes.set_xlabel("row minus baseline", fontsize=8, color=style.SOFT)
    axes.set_title(f"{what} ({better} is better)", loc="left", fontsize=9, color=style.INK)


def _limits(lines: Sequence[_Line]) -> tuple[float, float] | None:
    """Return the ends of an axis that cuts intervals much wider than most; None if none is.

    A row that is judged by its own two seeds has one of thousands of BLEU.
    """
    of_lines = [[line.difference.simultaneous, *line.earlier.values()] for line in lines]
    intervals = [each for of_line in of_lines for each in of_line if each and each.high > each.low]
    if not intervals:
        return None
    most = _WIDEST * median_low(each.high - each.low for each in intervals)
    whole = [each for each in intervals if each.high - each.low <= most]
    if len(whole) == len(intervals):
        return None
    points = [x for line in lines for x in (line.difference.estimate or 0.0, *line.seeds.values())]
    points += [0.0, *(end for each in whole for end in (each.low, each.high))]
    low, high = min(points), max(points)
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def _draw(axes: Axes, line: _Line, y: float, *, has_mark: bool) -> None:
    marker, edge, inside = FACES[line.verdict]
    for interval, width in ((line.difference.simultaneous, 1.0), (line.difference.single, 3.5)):
        if interval is not None:
            (bar,) = axes.plot([interval.low, interval.high], [y, y], zorder=2, linewidth=width)
            bar.set(color=edge, solid_capstyle="butt")
    for at, interval in enumerate(reversed([*line.earlier.values()]), start=1):
        ends, above = [interval.low, interval.high], [y - at * _STEP] * 2
        axes.plot(ends, above, color=edge, linewidth=0.8, alpha=0.45, zorder=1)
    seeds = list(line.seeds.values())
    axes.scatter(
        seeds, [y + 0.24] * len(seeds), s=7, color=style.SOFT, alpha=0.7, linewidths=0, zorder=3
    )
    if has_mark:
        estimate = line.difference.estimate or 0.0
        (mark,) = axes.plot([estimate], [y], marker=marker, markersize=6.5, zorder=4)
        mark.set(color=edge, markerfacecolor=inside, markeredgecolor=edge)


def _numbers(metric: str, line: _Line) -> dict[str, Any]:
    difference = line.difference
    return {
        "metric": metric,
        "row": line.row,
        "difference": difference.estimate,
        **interval_ends(difference.single, "single."),
        **interval_ends(difference.simultaneous, "simultaneous."),
        "n": difference.n,
        "method": difference.method,
        "verdict": str(line.verdict) if line.verdict else None,
        "seeds": " ".join(f"{seed}:{value:.6g}" for seed, value in line.seeds.items()),
        "looks": " ".join(f"{n}:[{i.low:.6g},{i.high:.6g}]" for n, i in line.earlier.items()),
    }
