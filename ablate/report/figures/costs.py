"""BLEU against what it costs: training FLOPs, decoding time, parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from ablate.analysis.comparison import compare
from ablate.analysis.summary import TRAIN_FLOPS, Summary
from ablate.report.figures.style import (
    COLOURS,
    INK,
    SOFT,
    Drawing,
    add_legend,
    draw_grid,
    look,
    names_width,
)
from ablate.report.results import DECODE_SPEED, Results

_LOGARITHMIC = 3.0  # ratio of the largest cost to the smallest from which on an axis has logs
_LEAST_REACH = 0.05  # of an axis to each side, as a share of what is in its middle
_MARGIN = 0.1  # of an axis to each side of its marks, for their numbers
_APART = (11.0, 7.5)  # points between two numbers or marks side by side, or one below the other
_PLACES = sorted(  # points from a mark to its number beside its bars, the nearest first
    ((x * _APART[0], y * _APART[1] / 2) for x in (1, -1, 2, -2, 3, -3) for y in range(-23, 24, 2)),
    key=lambda place: math.hypot(*place),
)
_NEAR = 14.0  # points from a mark to its number without a line between them
_TITLE = "BLEU against what it costs"
_TIME = "decoding, ms per sentence"
_LEGEND = (
    "0: the baseline; bars: one standard deviation over seeds, and over the rounds of the probe; "
    "line: rows that nothing cheaper is as good as, where an interval tells neighbours apart"
)
_LEGEND_OF_DIVERGED = "hollow: without the seeds of the row that diverged"
_NAME_SIZE = 7.5  # points
_NOT_NUMBERS = ("number", "has_diverged")


@dataclass(frozen=True)
class _Point:
    number: int  # of the row in the experiment, the baseline's is 0
    row: str
    cost: float
    error: float | None  # standard deviation of the cost; None of one seed, or one round
    bleu: float
    sd: float | None  # of BLEU over seeds
    has_diverged: bool  # some seeds, which are not in its BLEU


def draw_costs(results: Results) -> Drawing | None:
    """Draw BLEU against costs, a panel for each; return None if no row has been tested."""
    metric = results.bleu
    if metric is None:
        return None
    panels = {
        "training FLOPs": _points(results, metric, TRAIN_FLOPS),
        _TIME: _points(results, metric, DECODE_SPEED),
        "parameters": _points(results, metric, "params.total"),
    }
    panels = {title: points for title, points in panels.items() if points}
    if not panels:
        return None
    with look():
        names = [f"{at}  {each.name}" for at, each in enumerate(results.summaries)]
        height = max(3.4, 0.16 * len(names) + 1.0)
        width = 3.0 * len(panels) + max(1.8, 0.9 + names_width(names, _NAME_SIZE))
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for panel, (title, points) in zip(axes, panels.items(), strict=True):
            _panel(panel, title, points)
            _front(panel, results, metric, points)
        axes[0].set_ylabel("BLEU", color=SOFT)
        listed = axes[-1].annotate("\n".join(names), (1.03, 1.0), xycoords="axes fraction")
        listed.set(va="top", fontsize=_NAME_SIZE)
        has_hollow = any(point.has_diverged for points in panels.values() for point in points)
        add_legend(figure, f"{_LEGEND}; {_LEGEND_OF_DIVERGED}" if has_hollow else _LEGEND)
        figure.draw_without_rendering()  # lays out the panels
        for panel, points in zip(axes, panels.values(), strict=True):
            _number(panel, points)
        numbers = [
            {"measure": title, **{k: v for k, v in vars(point).items() if k not in _NOT_NUMBERS}}
            for title, points in panels.items()
            for point in points
        ]
        return Drawing("costs", _TITLE, figure, numbers)


def _points(results: Results, metric: str, cost: str) -> list[_Point]:
    points = []
    for number, summary in enumerate(results.summaries):
        bleu = summary.metrics.get(metric)
        known = _cost(summary, cost, is_baseline=number == 0)
        if bleu is not None and known is not None:
            has_diverged = summary.count("diverged") > 0
            points.append(_Point(number, summary.name, *known, bleu.mean, bleu.sd, has_diverged))
    return points


def _cost(summary: Summary, name: str, *, is_baseline: bool) -> tuple[float, float | None] | None:
    if name != DECODE_SPEED:
        known = summary.metrics.get(name)
        return None if known is None else (known.mean, known.sd)
    speed, rounds = summary.speeds.get(name), summary.rounds.get(name)
    if speed is None or not speed.value or (speed.ratio is None and not is_baseline):
        return None  # not measured, or when the machine may have been faster or slower
    cost = 1000.0 / speed.value
    if rounds is None or rounds.sd is None or not rounds.median:
        return cost, None
    return cost, cost * rounds.sd / rounds.median


def _panel(axes: Axes, title: str, points: Sequence[_Point]) -> None:
    for point in points:
        is_baseline = point.number == 0
        axes.errorbar(
            point.cost,
            point.bleu,
            xerr=point.error or None,
            yerr=point.sd or None,
            fmt="D" if is_baseline else "o",
            color=INK if is_baseline else COLOURS[0],
            markerfacecolor="white" if point.has_diverged else None,
            markersize=4.5,
            elinewidth=0.7,
            zorder=3,
        )
    axes.margins(x=_MARGIN)
    costs = [point.cost for point in points]
    if min(costs) > 0 and max(costs) / min(costs) > _LOGARITHMIC:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        low, high = axes.get_xlim()
        middle = (low + high) / 2
        half = max(high - middle, _LEAST_REACH * abs(middle))  # next to nothing must look like it
        axes.set_xlim(middle - half, middle + half)
    axes.xaxis.set_major_formatter("{x:g}" if title == _TIME else EngFormatter(sep=""))
    axes.set_xlabel(title, color=SOFT)
    draw_grid(axes)


def _number(axes: Axes, points: Sequence[_Point]) -> None:
    """Write each row's number beside its mark where there is room, those of high BLEU first."""
    to_points = 72 / axes.figure.dpi
    (left, low), (right, high) = axes.get_window_extent().get_points() * to_points
    ordered = sorted(points, key=lambda point: -point.bleu)
    marks = axes.transData.transform([(point.cost, point.bleu) for point in ordered]) * to_points
    taken = [*marks]

    def has_room(x: float, y: float) -> bool:
        is_apart = (np.abs(np.array(taken) - (x, y)) >= _APART).any(axis=1)
        return left < x < right and low < y < high and bool(is_apart.all())

    line = {"arrowstyle": "-", "color": SOFT, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0}
    for point, mark in zip(ordered, marks, strict=True):
        place = next((place for place in _PLACES if has_room(*(mark + place))), _PLACES[0])
        taken.append(mark + place)
        number = axes.annotate(
            str(point.number),
            (point.cost, point.bleu),
            place,
            textcoords="offset points",
            arrowprops=line if math.hypot(*place) > _NEAR else None,
        )
        number.set(ha="center", va="center", fontsize=7, color=INK)


def _front(axes: Axes, results: Results, metric: str, points: Sequence[_Point]) -> None:
    """Join neighbours of the Pareto front that an interval tells apart."""
    front = pareto_front([(point.cost, point.bleu) for point in points])
    values = results.values(metric)
    for cheaper, better in pairwise(front):
        low, high = points[cheaper], points[better]
        ordered = {low.row: values[low.row], **values}
        interval = compare(ordered, results.diverged).differences[high.row].single
        if interval is not None and interval.low > 0:
            ends = [low.cost, high.cost], [low.bleu, high.bleu]
            axes.plot(*ends, color=COLOURS[1], linewidth=1.2, zorder=2)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of points (cost, score) that no cheaper one is as good as, by cost."""
    order = sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1]))
    front, best = [], -math.inf
    for at in order:
        if points[at][1] > best:
            front.append(at)
            best = points[at][1]
    return front
