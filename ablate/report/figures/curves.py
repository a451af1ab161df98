"""Learning curves of an experiment."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ablate.config import Experiment
from ablate.errors import StoreError
from ablate.report.figures import style
from ablate.report.figures.style import (
    Drawing,
    add_legend,
    draw_grid,
    look,
    names_width,
    panel_title,
)
from ablate.report.values import grouped

_N_WINDOWS = 50  # of the training loss, which is noisy
_LABEL_GAP = 11.0  # points between the names of two rows

_MEASURES = {
    "train_loss": "Training loss, nats per token",
    "dev_nll": "Dev NLL, nats per token",
}
_TITLES: Mapping[tuple[str, ...], str] = {  # by the measures that are drawn
    ("train_loss",): "Training loss over the steps",
    ("dev_nll",): "Dev NLL over the steps",
    ("train_loss", "dev_nll"): "Training loss and dev NLL over the steps",
}
_MOST_OVERLAID = 8  # rows; with more, each has a panel

Points = dict[float, float]  # the value at each step, in ascending order


@dataclass(frozen=True)
class _Row:
    """One row's curves, and how they are drawn."""

    name: str
    curves: Mapping[str, Mapping[int, Points]]  # by measure and seed
    diverged: Collection[int]
    is_baseline: bool
    colour: str
    dashes: Any


def draw_curves(
    experiment: Experiment,
    curves: Mapping[tuple[str, int], Path],
    diverged: Collection[tuple[str, int]] = (),
    *,
    has_one_tokenizer: bool = True,
) -> Drawing | None:
    """Draw each ``curve.csv``: training loss and dev NLL over the steps; None without any."""
    rows = []
    # told apart without colours too
    faces = zip(cycle(style.COLOURS), cycle(style.DASHES), strict=False)
    for at, row in enumerate(experiment.rows):
        colour, dashes = (style.INK, "-") if at == 0 else next(faces)
        runs = {s: curves[row.name, s] for s in experiment.seeds if (row.name, s) in curves}
        of_row = {
            measure: {s: points for s, path in runs.items() if (points := _read(path, measure))}
            for measure in _MEASURES
        }
        of_row["train_loss"] = _windowed(of_row["train_loss"])
        lost = {seed for seed in runs if (row.name, seed) in diverged}
        rows.append(_Row(row.name, of_row, lost, at == 0, colour, dashes))
    measures = tuple(name for name in _MEASURES if any(row.curves[name] for row in rows))
    if "train_loss" not in measures:
        return None
    has_panels = len(rows) > _MOST_OVERLAID
    drawn = measures[-1:] if has_panels else measures
    with look():
        figure = _side_by_side(rows, drawn[-1]) if has_panels else _overlaid(rows, drawn)
        marks = (
            "black: the baseline's mean" if has_panels else "",
            "thin: each seed; thick: their mean" if len(experiment.seeds) > 1 else "one seed",
            "\u00d7: the seed diverged, and is not in the mean" if diverged else "",
            "training loss averaged over windows of steps" if "train_loss" in drawn else "",
            "" if has_one_tokenizer else "losses of rows with unlike tokens cannot be compared",
        )
        add_legend(figure, "; ".join(filter(None, marks)))
        numbers = [
            {
                "row": row.name,
                "seed": seed,
                "diverged": seed in row.diverged,
                "measure": measure,
                "step": int(step),
                "value": value,
            }
            for row, measure in product(rows, _MEASURES)
            for seed, points in row.curves[measure].items()
            for step, value in points.items()
        ]
        return Drawing("curves", _TITLES[drawn], figure, numbers)


def _overlaid(rows: Sequence[_Row], measures: Sequence[str]) -> Figure:
    width = max(8.6, 7.5 + names_width([row.name for row in rows], 9))
    figure = Figure(figsize=(width, max(3.6, 0.17 * len(rows) + 1.2)), layout="constrained")
    axes = figure.subplots(1, len(measures), squeeze=False)[0]
    for panel, measure in zip(axes, measures, strict=True):
        for row in rows:
            _draw(panel, row, row.curves[measure])
        _set_up(panel, _MEASURES[measure])
        panel.set_xlabel("step", color=style.SOFT)
    figure.draw_without_rendering()  # the labels need to know where the lines end
    _name_lines(figure, axes[-1], rows, measures[-1])
    for row in rows if "dev_nll" in measures else ():
        loss, dev = (row.curves[measure] for measure in _MEASURES)
        if loss and not dev:  # it ended before it was evaluated
            end = _end(list(loss.values()))
            axes[0].annotate(
                row.name, end, (8, 0), textcoords="offset points", fontsize=8, color=style.INK
            )
    return figure


def _side_by_side(rows: Sequence[_Row], measure: str) -> Figure:
    baseline, *others = rows
    n_lines = math.ceil(len(others) / style.PANELS_PER_LINE)
    figure = Figure(figsize=(9.4, 1.5 * n_lines + 0.8), layout="constrained")
    axes = figure.subplots(n_lines, style.PANELS_PER_LINE, sharex=True, sharey=True, squeeze=False)
    for panel, row in zip(axes.flat, others, strict=False):
        _draw(panel, baseline, baseline.curves[measure], is_mean_alone=True)
        _draw(panel, replace(row, colour=style.COLOURS[0], dashes="-"), row.curves[measure])
        n_lost = f", {len(row.diverged)} diverged" if row.diverged else ""
        _set_up(panel, panel_title(f"{row.name}{n_lost}"))
    style.remove_empty(axes, len(others))
    for panel in axes.flat[max(0, len(others) - style.PANELS_PER_LINE) : len(others)]:
        panel.set_xlabel("step", size=8, color=style.SOFT)
    figure.supylabel(_MEASURES[measure], size=8, color=style.SOFT)
    return figure


def spread_out(positions: Sequence[float], gap: float) -> list[float]:
    """Move ``positions`` apart to at least ``gap``, by least squares: pool adjacent violators."""
    order = sorted(range(len(positions)), key=lambda at: positions[at])
    blocks: list[tuple[float, int]] = []  # mean and size of positions that touch
    for rank, at in enumerate(order):
        mean, size = positions[at] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, n = blocks.pop()
            mean, size = (mean * size + other * n) / (size + n), size + n
        blocks.append((mean, size))
    means = [mean for mean, size in blocks for _ in range(size)]
    placed = dict(zip(order, (mean + rank * gap for rank, mean in enumerate(means)), strict=True))
    return [placed[at] for at in range(len(positions))]


def _read(path: Path, column: str) -> Points:
    """Return the finite values of one column by step; a run that was resumed may repeat steps."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            cells = [(row["step"], row[column]) for row in csv.DictReader(file)]
        points = {float(step): float(value) for step, value in cells if value}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: is not a learning curve: {error!r}") from error
    return {step: points[step] for step in sorted(points) if math.isfinite(points[step])}


def _windowed(seeds: Mapping[int, Points]) -> dict[int, Points]:
    """Average every seed's values over the same windows of steps, each named by its last step."""
    last = max((max(points) for points in seeds.values()), default=0.0)
    width = max(1, math.ceil(last / _N_WINDOWS))
    windowed = {}
    for seed, points in seeds.items():
        end = max(points)  # a curve ends where it ended
        windows = grouped(
            (min(math.ceil(step / width) * width, end), value) for step, value in points.items()
        )
        windowed[seed] = {step: sum(values) / len(values) for step, values in windows.items()}
    return windowed


def _set_up(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=8.5, color=style.INK)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    draw_grid(axes, "y")
    axes.set_xlim(left=0)


def _draw(
    axes: Axes, row: _Row, seeds: Mapping[int, Points], *, is_mean_alone: bool = False
) -> None:
    line = {"color": row.colour, "linestyle": row.dashes, "zorder": 4 if row.is_baseline else 3}
    mean = _mean([points for seed, points in seeds.items() if seed not in row.diverged])
    if mean:
        width, marker = 2.0 if row.is_baseline else 1.4, "o" if len(mean) == 1 else ""
        axes.plot(
            list(mean), list(mean.values()), **line, linewidth=width, marker=marker, markersize=3
        )
    for seed, points in () if is_mean_alone else seeds.items():
        steps, values = list(points), list(points.values())
        if len(seeds) > 1 or not mean:
            axes.plot(steps, values, **{**line, "linestyle": "-"}, linewidth=0.6, alpha=0.55)
        if seed in row.diverged:
            axes.plot(steps[-1:], values[-1:], "x", color=row.colour, markersize=6, zorder=5)


def _mean(seeds: Sequence[Points]) -> Points:
    """Return the mean at each step that all seeds have."""
    steps = sorted(set.intersection(*(set(points) for points in seeds))) if seeds else []
    return {step: sum(points[step] for points in seeds) / len(seeds) for step in steps}


def _name_lines(figure: Figure, axes: Axes, rows: Sequence[_Row], measure: str) -> None:
    """Write every row's name at the right, near the end of its line, none over another."""
    drawn = [row for row in rows if row.curves[measure]]
    ends = [(row, *_end(list(row.curves[measure].values()))) for row in drawn]
    box = axes.get_window_extent()
    heights = [axes.transData.transform((x, y))[1] - box.y0 for _, x, y in ends]  # pixels
    placed = spread_out(heights, _LABEL_GAP * figure.dpi / 72)
    for (row, x, y), label in zip(ends, placed, strict=True):
        axes.annotate(
            row.name,
            xy=(x, y),
            xytext=(1.04, label / box.height),
            textcoords="axes fraction",
            color=style.INK,
            va="center",
            fontweight="bold" if row.is_baseline else "normal",
            annotation_clip=False,
            arrowprops={  # to the beginning of the name, so that it crosses no other one
                "arrowstyle": "-",
                "color": row.colour,
                "lw": 1.2,
                "ls": row.dashes,
                "relpos": (0.0, 0.5),
            },
        )


def _end(seeds: Sequence[Points]) -> tuple[float, float]:
    """Return the last step that any seed has come to, and the mean of those that have."""
    last = max(max(points) for points in seeds)
    values = [points[last] for points in seeds if last in points]
    return last, sum(values) / len(values)
