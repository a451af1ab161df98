"""Learning curves of an experiment."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ablate.config import Experiment
from ablate.errors import StoreError
from ablate.report.figures.style import COLOURS, DASHES, INK, SOFT, look, saved

Curves = Mapping[tuple[str, int], Path]
"""The ``curve.csv`` of each row and seed, as far as there are any."""

_N_WINDOWS = 50  # of the training loss, which is noisy
_LABEL_GAP = 11.0  # points between the names of two rows

Points = dict[float, float]
"""The value at each step, in ascending order."""


@dataclass(frozen=True)
class _Row:
    """One row's curves, one per seed, and how they are drawn."""

    name: str
    loss: list[Points]
    dev: list[Points]
    is_baseline: bool
    colour: str
    dashes: Any


def draw_curves(experiment: Experiment, curves: Curves, folder: Path) -> list[Path]:
    """Draw ``curves.svg`` and ``curves.png``: training loss and dev NLL over the steps.

    A line is the mean over seeds, a band reaches from the lowest to the highest of them, as far as
    all of them have come; where some go further, they go alone and thin. The training loss is
    averaged over windows of steps.

    Returns:
        The two files, or nothing if there is nothing to draw.

    Raises:
        StoreError: if a curve cannot be read or a figure cannot be written.
    """
    rows = list(_rows(experiment, curves))
    if not any(chain.from_iterable(row.loss for row in rows)):
        return []
    with look():
        figure = Figure(figsize=(8.6, max(3.6, 0.17 * len(rows) + 1.2)), layout="constrained")
        left, right = figure.subplots(1, 2)
        _panel(left, "Training loss, nats per token", [(row, row.loss) for row in rows])
        _panel(right, "Dev NLL, nats per token", [(row, row.dev) for row in rows])
        has_dev = any(chain.from_iterable(row.dev for row in rows))
        figure.canvas.draw()  # the labels need to know where the lines end
        ends = [(row, row.dev if has_dev else row.loss) for row in rows]
        _name_lines(figure, right if has_dev else left, ends)
        figure.supxlabel(_legend(len(experiment.seeds)), x=0.01, ha="left", size=7.5, color=SOFT)
        if not has_dev:
            figure.delaxes(right)
        return saved(figure, folder, "curves")


def spread_out(wanted: Sequence[float], gap: float) -> list[float]:
    """Move ``wanted`` positions apart to at least ``gap``, and as little as that takes.

    Their order stays. The sum of the squared moves is the least possible: pool adjacent violators.
    """
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    blocks: list[tuple[float, int]] = []  # mean and size of positions that touch
    for rank, at in enumerate(order):
        mean, size = wanted[at] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, n = blocks.pop()
            mean, size = (mean * size + other * n) / (size + n), size + n
        blocks.append((mean, size))
    means = [mean for mean, size in blocks for _ in range(size)]
    placed = dict(zip(order, (mean + rank * gap for rank, mean in enumerate(means)), strict=True))
    return [placed[at] for at in range(len(wanted))]


def _legend(n_seeds: int) -> str:
    if n_seeds == 1:
        return "one seed; training loss averaged over windows of steps"
    return (
        f"line: mean over {n_seeds} seeds; band: lowest to highest; thin: where some ended sooner; "
        "training loss averaged over windows of steps"
    )


def _rows(experiment: Experiment, curves: Curves) -> Iterator[_Row]:
    faces = product(DASHES, COLOURS)
    for at, row in enumerate(experiment.rows):
        dashes, colour = ("-", INK) if at == 0 else next(faces, ("-", SOFT))
        found = [curves[row.name, s] for s in experiment.seeds if (row.name, s) in curves]
        read = [(_read(path, "train_loss"), _read(path, "dev_nll")) for path in found]
        yield _Row(
            name=row.name,
            loss=_windowed([loss for loss, _ in read if loss]),
            dev=[dev for _, dev in read if dev],
            is_baseline=at == 0,
            colour=colour,
            dashes=dashes,
        )


def _read(path: Path, column: str) -> Points:
    """Return the finite values of one column by step; a run that was resumed may repeat steps."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            cells = [(row["step"], row[column]) for row in csv.DictReader(file)]
        points = {float(step): float(value) for step, value in cells if value}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: is not a learning curve: {error!r}") from error
    return {step: points[step] for step in sorted(points) if math.isfinite(points[step])}


def _windowed(seeds: list[Points]) -> list[Points]:
    """Average every seed's values over the same windows of steps, each named by its last step."""
    last = max((max(points) for points in seeds), default=0.0)
    width = max(1, math.ceil(last / _N_WINDOWS))
    windowed = []
    for points in seeds:
        windows: dict[float, list[float]] = {}
        for step, value in points.items():
            windows.setdefault(math.ceil(step / width) * width, []).append(value)
        windowed.append({step: sum(values) / len(values) for step, values in windows.items()})
    return windowed


def _panel(axes: Axes, title: str, rows: Sequence[tuple[_Row, list[Points]]]) -> None:
    for row, seeds in rows:
        if seeds:
            _draw(axes, row, seeds)
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.set_xlabel("step", color=SOFT)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color="#e4e4e8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)


def _draw(axes: Axes, row: _Row, seeds: list[Points]) -> None:
    steps = _common_steps(seeds)
    values = np.array([[points[step] for step in steps] for points in seeds])  # (seeds, steps)
    order = 4 if row.is_baseline else 3
    line = {"color": row.colour, "linestyle": row.dashes, "zorder": order}
    if steps:
        mean = values.mean(axis=0)
        is_point = len(steps) == 1
        width, marker = 2.0 if row.is_baseline else 1.4, "o" if is_point else ""
        axes.plot(steps, mean, **line, linewidth=width, marker=marker, markersize=3)
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(steps, low, high, color=row.colour, alpha=0.14, linewidth=0, zorder=2)
    for points in seeds:
        beyond = [step for step in points if not steps or step >= steps[-1]]
        if len(beyond) > 1:
            axes.plot(beyond, [points[step] for step in beyond], **line, linewidth=0.7, alpha=0.7)


def _common_steps(seeds: Sequence[Points]) -> list[float]:
    return sorted(set.intersection(*(set(points) for points in seeds)))


def _name_lines(figure: Figure, axes: Axes, rows: Sequence[tuple[_Row, list[Points]]]) -> None:
    """Write every row's name at the right, near the end of its line, none over another."""
    ends = [(row, *_end(seeds)) for row, seeds in rows if seeds]
    box = axes.get_window_extent()
    heights = [axes.transData.transform((x, y))[1] - box.y0 for _, x, y in ends]  # pixels
    placed = spread_out(heights, _LABEL_GAP * figure.dpi / 72)
    for (row, x, y), label in zip(ends, placed, strict=True):
        axes.annotate(
            row.name,
            xy=(x, y),
            xytext=(1.04, label / box.height),
            textcoords="axes fraction",
            color=row.colour,
            va="center",
            fontweight="bold" if row.is_baseline else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": row.colour, "lw": 0.5, "shrinkB": 2},
        )


def _end(seeds: Sequence[Points]) -> tuple[float, float]:
    """Return the last step that any seed has come to, and the mean of those that have."""
    last = max(max(points) for points in seeds)
    values = [points[last] for points in seeds if last in points]
    return last, sum(values) / len(values)
