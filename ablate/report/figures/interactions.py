"""What pairs of changes do together beyond the sum of what each does alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ablate.analysis.comparison import Interaction, Quadruple, interaction
from ablate.config import Experiment, value_at
from ablate.config.rows import labels
from ablate.report.columns import changed_paths
from ablate.report.figures.style import INK, SOFT, Drawing, add_legend, look
from ablate.report.results import Results
from ablate.report.values import format_value, grouped, interval_ends, signed

_TITLE = "Interactions: what two changes do together beyond the sum of both"
_LEGEND = (
    "BLEU with both changes, less what each does alone; empty: the interval, which holds together "
    "with those of all cells, holds 0; no interval: too few seeds; no result: a row diverged or is "
    "not done"
)
_GREY, _ORANGE, _BLUE = 0.93, (0.835, 0.369, 0.0), (0.0, 0.447, 0.698)  # of COLOURS
_LIGHT, _BLACK = "#fefefe", "#010101"  # on colours, which are the same on a dark page
_DARK = 0.6  # share of the largest interaction from which letters are light
_DECIMALS = 1
_BASELINE = ""  # the level of a path that a row leaves alone

# by path, the values that rows give it, each by its JSON; the first one is the reference
Levels = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class _Cell:
    """Two changes, with the rows that have both, one of them, and neither."""

    paths: tuple[str, str]
    levels: tuple[str, str]
    rows: Quadruple


_Pair = list[tuple[_Cell, Interaction | None]]


def draw_interactions(experiment: Experiment, results: Results) -> Drawing | None:
    """Draw a heat map for every two paths that rows change together and one by one; or None."""
    compared = results.comparison(results.bleu)
    levels = _levels(experiment)
    cells = list(_cells(experiment, levels))
    if compared is None or not cells:
        return None
    scores = results.values(results.bleu or "")
    estimates = [interaction(cell.rows, scores, compared, len(cells)) for cell in cells]
    by_pair = grouped((c.paths, (c, each)) for c, each in zip(cells, estimates, strict=True))
    sizes = (abs(each.estimate) for each in estimates if each and each.differs_from_0)
    largest = max(sizes, default=1)
    with look():
        figure = _figure(by_pair, levels, largest)
        numbers = [_numbers(cell, each, levels) for pair in by_pair.values() for cell, each in pair]
        return Drawing("interactions", _TITLE, figure, numbers)


def _figure(by_pair: Mapping[tuple[str, str], _Pair], levels: Levels, largest: float) -> Figure:
    names = dict(zip(levels, labels(list(levels)), strict=True))
    n_lines, n_columns = (
        [len({cell.levels[axis] for cell, _ in pair}) for pair in by_pair.values()]
        for axis in (0, 1)
    )
    size = max(4.5, 1.1 * max(n_columns) + 1.5), sum(0.42 * n + 0.85 for n in n_lines) + 0.5
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(n_lines), 1, squeeze=False, height_ratios=n_lines)[:, 0]
    for panel, (paths, pair) in zip(axes, by_pair.items(), strict=True):
        _panel(panel, pair, levels, largest)
        panel.set_ylabel(names[paths[0]], color=SOFT)
        panel.set_xlabel(names[paths[1]], color=SOFT)
    add_legend(figure, _LEGEND)
    return figure


def _levels(experiment: Experiment) -> Levels:
    """Return the levels of each path, those of the file alone, the baseline's first if shared."""
    baseline, *rows = experiment.rows
    spec = baseline.spec.model_dump(mode="json")
    levels: dict[str, dict[str, Any]] = {}
    changes = [row.changes_of_file for row in rows]
    for path in changed_paths(changes):
        alone = {_BASELINE: value_at(spec, path)}
        values = {_key(of_row[path]): of_row[path] for of_row in changes if path in of_row}
        is_left_alone = any(path not in of_row for of_row in changes)
        levels[path] = {**alone, **values} if is_left_alone else values
    return levels


def _cells(experiment: Experiment, levels: Levels) -> Iterator[_Cell]:
    """Yield every two changes for which there are all four rows."""
    rows = {
        frozenset((path, _key(value)) for path, value in row.changes_of_file.items()): row.name
        for row in experiment.rows
    }
    references = {path: next(iter(of_path)) for path, of_path in levels.items()}
    for first, second in combinations(levels, 2):
        of_both = (list(levels[path])[1:] for path in (first, second))
        for a, b in product(*of_both):
            points = [
                {**references, **some}
                for some in ({first: a, second: b}, {first: a}, {second: b}, {})
            ]
            known = [frozenset(each for each in p.items() if each[1] != _BASELINE) for p in points]
            if all(point in rows for point in known):
                both, one, other, neither = (rows[point] for point in known)
                yield _Cell((first, second), (a, b), (both, one, other, neither))


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _panel(axes: Axes, pair: _Pair, levels: Levels, largest: float) -> None:
    first, second = pair[0][0].paths
    ys = list(dict.fromkeys(cell.levels[0] for cell, _ in pair))
    xs = list(dict.fromkeys(cell.levels[1] for cell, _ in pair))
    for cell, each in pair:
        _draw(axes, (xs.index(cell.levels[1]), ys.index(cell.levels[0])), each, largest)
    axes.set_xlim(-0.5, len(xs) - 0.5)
    axes.set_ylim(len(ys) - 0.5, -0.5)
    axes.set_xticks(range(len(xs)), [format_value(levels[second][level], second) for level in xs])
    axes.set_yticks(range(len(ys)), [format_value(levels[first][level], first) for level in ys])
    axes.tick_params(length=0, labelcolor=INK, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_facecolor("none")


def _draw(axes: Axes, at: tuple[int, int], each: Interaction | None, largest: float) -> None:
    (x, y), text, colour, ink = at, "no result", "none", SOFT
    if each is not None:
        text = "" if each.interval else "no interval"
        if each.differs_from_0:
            share = each.estimate / largest
            text, full = signed(each.estimate, _DECIMALS), _BLUE if share > 0 else _ORANGE
            red, green, blue = (_GREY + abs(share) * (part - _GREY) for part in full)
            colour = to_hex((red, green, blue))
            ink = _LIGHT if abs(share) > _DARK else _BLACK
    box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=SOFT, linewidth=0.5)
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", fontsize=8, color=ink)


def _numbers(cell: _Cell, each: Interaction | None, levels: Levels) -> dict[str, Any]:
    (first, second), (a, b) = cell.paths, cell.levels
    return {
        "first": f"{first}={format_value(levels[first][a])}",
        "second": f"{second}={format_value(levels[second][b])}",
        "rows": "; ".join(cell.rows),
        "interaction": each.estimate if each else None,
        **interval_ends(each.interval if each else None),
        "n": each.n if each else 0,
    }
