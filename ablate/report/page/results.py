"""The tables of a page: sortable, with the seeds of a number behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ablate.analysis.measures import Verdict
from ablate.analysis.statistics import paired_differences
from ablate.analysis.summary import Summary, is_measured_once
from ablate.report.provenance import PROVENANCE
from ablate.report.table import Cell, Column, Footnote, Line, Table, joined_changes
from ablate.report.values import number, signed

_MOST_CHANGES = 2  # columns of changed paths
_COSTS = ("params.", "flops.", "train.", "speed.", "memory.")
_SEED_DECIMALS = 3
_DIFFERENCE, _INTERVAL = ".difference", ".interval"


def results(table: Table) -> str:
    """Return the tables of all columns, and the footnotes that say how to read them.

    The columns of what a row costs stand in a table of their own.
    """
    parts = []
    for block in (joined_changes(block, _MOST_CHANGES) for block in table.blocks):
        high = [at for at, column in enumerate(block.columns) if column.key.startswith(_COSTS)]
        low = [at for at in range(len(block.columns)) if at not in high]
        parts += [block.only(low), block.only([0, *high])] if high else [block]
    notes = definitions([note for note in table.footnotes if note.label not in PROVENANCE])
    return "\n".join([*map(_table, parts), notes])


def definitions(notes: Sequence[Footnote]) -> str:
    """Return remarks, each after its label; nothing if there are none."""
    lines = [f"<dt>{escape(note.label)}</dt><dd>{escape(note.text)}</dd>" for note in notes]
    return "\n".join(["<dl>", *lines, "</dl>"]) if lines else ""


def _table(table: Table) -> str:
    label = ", ".join(column.title for column in table.columns if column.kind != "row")
    baseline, *variants = (_row(table, line, at) for at, line in enumerate(table.lines))
    body = "\n".join(variants)
    return f"""<table class="cards" role="table" aria-label="{escape(label)}">
<thead role="rowgroup">
<tr role="row">{"".join(map(_head, table.columns))}</tr>
</thead>
<tbody role="rowgroup" class="baseline">
{baseline}
</tbody>
<tbody role="rowgroup">
{body}
</tbody>
</table>"""


def _head(column: Column) -> str:
    face = ' class="n"' if column.is_number else ""
    detail = f" <small>{escape(column.detail)}</small>" if column.detail else ""
    text = escape(column.header) or "row"
    return f'<th role="columnheader" scope="col"{face}>{text}{detail}</th>'


def _row(table: Table, line: Line, at: int) -> str:
    cells = (_cell(table, line, *both) for both in zip(table.columns, line.cells, strict=True))
    return f'<tr role="row" data-row="{at}">{"".join(cells)}</tr>'


def _cell(table: Table, line: Line, column: Column, cell: Cell) -> str:
    if column.kind == "row":
        return f'<th role="rowheader" scope="row">{escape(cell.value)}</th>'
    aside = f' <span class="soft">({escape(cell.aside)})</span>' if cell.aside else ""
    text = f"{escape(cell.value)}{escape(cell.mark)}{aside}"
    verdict = cell.value.replace(" ", "-") if cell.value in set(Verdict) else ""
    shape = f' class="{verdict}"' if column.kind == "verdict" and verdict else ""
    inner = f"<span{shape}>{text}</span>" if text else ""
    face = {"measure": "n", "verdict": "verdict"}.get(column.kind, "text")
    data = {
        "label": column.title,
        "value": _value(table, line.summary, column.key),
        "seeds": _seeds(table, line.summary, column.key) if inner else None,
    }
    attributes = "".join(f' data-{key}="{escape(text)}"' for key, text in data.items() if text)
    return f'<td role="cell" class="{face}"{attributes}>{inner}</td>'


def _value(table: Table, summary: Summary, key: str) -> str | None:
    """Return what a column is sorted by where that is a number: the value in full."""
    speed, value = summary.speeds.get(key), None
    if key == "done":
        value = float(summary.count("done"))
    elif speed is not None:
        value = speed.ratio
    elif key in summary.metrics:
        value = summary.metrics[key].mean
    elif _DIFFERENCE in key:
        metric, results = key.partition(_DIFFERENCE)[0], table.results
        difference = results.difference(summary.name, metric) if results else None
        value = difference.estimate if difference else None
    return None if value is None or not math.isfinite(value) else repr(value)


def _seeds(table: Table, summary: Summary, key: str) -> str | None:
    """Return the value of every seed; None where all seeds share one, or there is one alone."""
    metric = key.removesuffix(_INTERVAL).removesuffix(_DIFFERENCE)
    own = summary.metrics.get(metric)
    if own is None or is_measured_once(metric) or not metric.startswith(("test.", "dev.")):
        return None
    if metric == key:
        lines = [f"seed {s}: {number(v, _SEED_DECIMALS)}" for s, v in own.values.items()]
        spread = f"\nsd {number(own.sd, _SEED_DECIMALS)}" if own.sd is not None else ""
        return "\n".join(lines) + spread
    baseline = table.lines[0].summary.metrics.get(metric)
    if baseline is None or summary is table.lines[0].summary:
        return None
    pairs = paired_differences(own.values, baseline.values)
    return "\n".join(f"seed {seed}: {signed(d, _SEED_DECIMALS)}" for seed, d in pairs.items())
