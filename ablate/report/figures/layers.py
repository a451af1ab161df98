"""The gradient and the update of every layer over training."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ablate.config import Experiment
from ablate.errors import StoreError
from ablate.report.figures.style import INK, SOFT, Drawing, add_legend, look

_TITLE = "Gradient and update of every layer over training"
_MEASURES = {
    "gradient_norm": "norm of the gradient, before clipping",
    "update_ratio": "update over weights, ratio of norms",
}
_LEGEND = (
    "geometric mean over seeds; steps on a logarithmic axis; empty: 0, not finite, or not reached; "
    "beyond a scale: the colour of its end"
)
_COLOURS = "viridis"  # lighter is more, in black and white too
_LINE, _GAP, _TOP, _BOTTOM, _LEFT = 0.13, 0.42, 0.75, 0.75, 0.95  # inches
_WIDTH = 8.6

Point = tuple[str, int]  # layer and step
Means = Mapping[Point, float]


def draw_layers(
    experiment: Experiment,
    files: Mapping[tuple[str, int], Path],
    diverged: Collection[tuple[str, int]] = (),
) -> Drawing | None:
    """Draw heat maps of ``layers.csv`` over steps, two for each row; return None without files.

    The scales are those of the rows without ``diverged`` seeds, if there are any.
    """
    rows = {
        row.name: means
        for row in experiment.rows
        if (means := _means([path for (name, _), path in files.items() if name == row.name]))
    }
    if not rows:
        return None
    partial = {name for name, _ in diverged}
    scaled = [of_row for row, of_row in rows.items() if row not in partial] or [*rows.values()]
    with look():
        numbers = [
            {
                "row": row,
                "layer": layer,
                "step": step,
                **{m: float(f"{measures[m][layer, step]:.6g}") for m in _MEASURES},
            }
            for row, measures in rows.items()
            for layer, step in measures["gradient_norm"]
        ]
        return Drawing("layers", _TITLE, _figure(rows, scaled), numbers)


def _means(paths: Sequence[Path]) -> dict[str, Means]:
    """Return the geometric means over files by measure; nothing without a finite value."""
    by_measure: dict[str, dict[Point, list[float]]] = {measure: {} for measure in _MEASURES}
    for path in paths:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for line in csv.DictReader(file):
                    for measure, of_points in by_measure.items():
                        point = line["layer"], int(line["step"])
                        of_points.setdefault(point, []).append(float(line[measure] or "nan"))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path}: is not a record of layers: {error!r}") from error
    means: dict[str, Means] = {
        measure: {point: _mean(values) for point, values in of_points.items()}
        for measure, of_points in by_measure.items()
    }
    return means if all(any(map(math.isfinite, each.values())) for each in means.values()) else {}


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean of what is finite and not 0; NaN without any."""
    logs = [math.log(value) for value in values if math.isfinite(value) and value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _figure(
    rows: Mapping[str, Mapping[str, Means]], scaled: Sequence[Mapping[str, Means]]
) -> Figure:
    n_layers = [len(_layers(measures)) for measures in rows.values()]
    height = sum(n * _LINE + _GAP for n in n_layers) + _TOP + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.subplots(
        len(rows),
        2,
        sharex=True,
        squeeze=False,
        gridspec_kw={
            "height_ratios": n_layers,
            "left": _LEFT / _WIDTH,
            "right": 0.985,
            "top": 1 - _TOP / height,
            "bottom": _BOTTOM / height,
            "wspace": 0.06,
            "hspace": _GAP / _LINE / (sum(n_layers) / len(n_layers)),
        },
    )
    for column, (measure, title) in enumerate(_MEASURES.items()):
        values = [v for of_row in scaled for v in of_row[measure].values()]
        known = np.array([value for value in values if math.isfinite(value)])
        low, high = np.quantile(known, [0.01, 0.99])
        scale = LogNorm(low, max(high, low * 1.01), clip=True)
        for line, (row, of_row) in enumerate(rows.items()):
            _panel(axes[line, column], of_row[measure], _layers(of_row), scale)
            axes[line, column].set_title(row if column == 0 else "", loc="left", fontsize=8.5)
            axes[line, column].tick_params(labelleft=column == 0, labelbottom=True)
        box = axes[0, column].get_position()
        bar = figure.add_axes((box.x0, 1 - 0.4 / height, box.width, 0.09 / height))
        figure.colorbar(ScalarMappable(scale, _COLOURS), cax=bar, orientation="horizontal")
        bar.set_title(title, loc="left", fontsize=8.5, color=INK)
        subs = (1, 2, 5) if high < 100 * low else (1,)
        bar.xaxis.set_major_locator(ticker.LogLocator(subs=subs, numticks=6))
        bar.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        bar.xaxis.set_minor_locator(ticker.NullLocator())
        bar.tick_params(labelsize=6.5, length=2)
    for panel in axes[-1]:
        panel.set_xlabel("step", color=SOFT, fontsize=8)
    add_legend(figure, _LEGEND)
    return figure


def _layers(measures: Mapping[str, Means]) -> list[str]:
    """Return the layers of a row from the input to the output."""
    layers = dict.fromkeys(layer for layer, _ in measures["gradient_norm"])
    order = {"embedding": 0, "encoder": 1, "decoder": 2}

    def place(layer: str) -> tuple[int, int]:
        name, _, number = layer.partition(" ")
        return order.get(name, len(order)), int(number or 10**6)

    return sorted(layers, key=place)


def _panel(axes: Axes, means: Means, layers: Sequence[str], scale: LogNorm) -> None:
    steps = sorted({step for _, step in means})
    values: NDArray[np.float64] = np.full((len(layers), len(steps)), math.nan)
    for (layer, step), value in means.items():
        values[layers.index(layer), steps.index(step)] = value
    middles = np.sqrt(np.array(steps[:-1], dtype=float) * np.array(steps[1:], dtype=float))
    edges = np.concatenate([[steps[0] / 1.1], middles, [steps[-1] * 1.1]])
    mesh = np.ma.masked_invalid(values)
    axes.pcolormesh(
        edges, np.arange(len(layers) + 1), mesh, norm=scale, cmap=_COLOURS, rasterized=True
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(base=10))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_ylim(len(layers), 0)
    axes.set_yticks(np.arange(len(layers)) + 0.5, layers)
    axes.tick_params(labelsize=6.5, length=2)
    axes.spines[:].set_visible(False)
