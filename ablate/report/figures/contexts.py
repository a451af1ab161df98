"""Forest plots over contexts: a panel per row, a line per context, and the mean of all."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablate.analysis.comparison import Difference
from ablate.analysis.measures import Verdict
from ablate.analysis.statistics import Interval
from ablate.report.contexts import metric_of, verdict_over
from ablate.report.figures import style
from ablate.report.figures.differences import FACES, divergence
from ablate.report.figures.style import Drawing, add_legend, look, panel_title
from ablate.report.results import Results
from ablate.report.table import Contexts, Table
from ablate.report.values import interval_ends

_TITLE = "Differences from each context's baseline, in BLEU"
_OF_THESE = "of the mean in these contexts, which may go beyond the axis"
_OF_OTHERS = (
    "of the mean elsewhere; faint: what one more context may show; both may go beyond the axis"
)
_LEGEND = (
    "lines: 95% intervals of all rows of a context, and {}; shaded: negligible; \u25b2 better, "
    "\u25bc worse, \u25a0 no difference that matters, or none; \u25cb cannot tell, "
    "\u25c7 none of these"
)
_ALL = "mean"


def draw_contexts(table: Table) -> Drawing | None:
    """Draw the differences in BLEU of every row; return None if no row has any."""
    contexts = table.contexts
    assert contexts is not None, "it is the overview of some"
    results = {name: each.results for name, each in contexts.tables.items() if each.results}
    rows = [line.summary.name for line in table.lines[1:]]
    numbers = [line for row in rows for line in _numbers(row, contexts, results)]
    if not any(line["difference"] is not None for line in numbers):
        return None
    n_wide = min(len(rows), style.PANELS_PER_LINE)
    n_high = math.ceil(len(rows) / n_wide)
    with look():
        size = (2.3 * n_wide + 1.0, n_high * (0.3 * (len(results) + 1) + 0.7) + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(n_high, n_wide, sharex=True, sharey=True, squeeze=False)
        for row, axes in zip(rows, grid.flat, strict=False):
            _panel(axes, row, [line for line in numbers if line["row"] == row], results)
        style.remove_empty(grid, len(rows))
        drawn = [line for line in numbers if not _remark(line, results)]
        grid[0][0].set_xlim(*_range(drawn))
        for panel in grid.flat[max(0, len(rows) - n_wide) : len(rows)]:
            panel.set_xlabel("BLEU, row minus baseline", fontsize=8, color=style.SOFT)
        is_of_others = any(line["prediction.low"] is not None for line in numbers)
        add_legend(figure, _LEGEND.format(_OF_OTHERS if is_of_others else _OF_THESE))
        return Drawing("contexts", _TITLE, figure, numbers)


def _range(lines: list[dict[str, Any]]) -> tuple[float, float]:
    """Return what the axis is to show: all contexts, though not the ends of wide means."""
    ends = [0.0]
    for line in lines:
        keys = ("difference",) if line["context"] == _ALL else ("difference", "low", "high")
        ends += [line[key] for key in keys if line[key] is not None]
    room = 0.1 * (max(ends) - min(ends)) or 1.0
    return min(ends) - room, max(ends) + room


def _numbers(row: str, contexts: Contexts, results: dict[str, Results]) -> list[dict[str, Any]]:
    """Return the lines of one row: of each context, and of all."""
    known: list[tuple[str, float | None, Interval | None, Interval | None, Verdict | None]] = []
    for name, each in results.items():
        metric = metric_of("bleu", each)
        difference = each.difference(row, metric) or Difference(None, 0, 0, "none")
        interval, judged = difference.simultaneous, each.verdict(row, metric)
        known.append((name, difference.estimate, interval, None, judged))
    if over := contexts.over["bleu"].get(row):
        judged = verdict_over("bleu", over.interval, results.values())
        known.append((_ALL, over.mean, over.interval, over.prediction, judged))
    return [
        {
            "row": row,
            "context": context,
            "difference": estimate,
            **interval_ends(interval),
            **interval_ends(prediction, "prediction."),
            "verdict": judged and str(judged),
        }
        for context, estimate, interval, prediction, judged in known
    ]


def _remark(line: dict[str, Any], results: dict[str, Results]) -> str:
    """Return what stands in place of the mark of a row in a context: how it diverged."""
    context = line["context"]
    return "" if context == _ALL else divergence(results[context], line["row"])


def _panel(axes: Axes, row: str, lines: list[dict[str, Any]], results: dict[str, Results]) -> None:
    names = [*results, _ALL]
    style.set_up_lines(axes, names, next(iter(results.values())).negligible.bleu)
    axes.axvline(0, color=style.SOFT, linewidth=0.6, zorder=1)
    axes.axhline(len(results) - 0.5, color=style.FAINT, linewidth=0.6)
    for line in lines:
        y, remark = names.index(line["context"]), _remark(line, results)
        if remark or line["difference"] is None:
            style.write_at_0(axes, y, remark or "no result")
            continue
        marker, edge, inside = FACES[Verdict(line["verdict"]) if line["verdict"] else None]
        for kind, width, shade in (("prediction.", 4.0, 0.2), ("", 1.2, 1.0)):
            if line[f"{kind}low"] is not None:
                ends = [line[f"{kind}low"], line[f"{kind}high"]]
                axes.plot(ends, [y, y], color=edge, linewidth=width, alpha=shade, zorder=2)
        (mark,) = axes.plot([line["difference"]], [y], marker=marker, markersize=6, zorder=3)
        mark.set(color=edge, markerfacecolor=inside, markeredgecolor=edge)
    axes.set_title(panel_title(row), loc="left", fontsize=9, color=style.INK)
