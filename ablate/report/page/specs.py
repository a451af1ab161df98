"""The whole spec of the baseline, and what each row has that it has not."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from ablate.config import Row
from ablate.config.dump import dump
from ablate.record import leaves
from ablate.report.results import Details
from ablate.report.values import format_value

Values = dict[str, Any]
"""By dotted path."""


def specs(details: Details) -> str:
    """Return how each row differs, in all values that follow from its change, and the baseline."""
    baseline, *rows = details.experiment.rows
    text = dump(_plain(baseline))
    lines = [line for row in rows for line in _lines(row, baseline)]
    head = "".join(f'<th scope="col">{name}</th>' for name in ("row", "value", "baseline", "here"))
    table = f"""<div class="wide" role="region" aria-label="Differences" tabindex="0">
<table>
<caption>Every value in which a row differs from the baseline, defaults included</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{chr(10).join(lines)}
</tbody>
</table>
</div>"""
    return f"""{table if lines else ""}
<details>
<summary>The whole spec of the baseline, without its seed</summary>
<pre tabindex="0"><code>{escape(text)}</code></pre>
</details>"""


def differing(row: Row, baseline: Row) -> Iterator[tuple[str, Values, Values]]:
    """Yield the paths at which two rows differ, each with all values of the one and the other."""
    ours, theirs = (dict(leaves(_plain(each))) for each in (row, baseline))
    for path in dict.fromkeys((*ours, *theirs)):
        if ours.get(path) != theirs.get(path):
            yield path, ours, theirs


def _plain(row: Row) -> dict[str, Any]:
    return {k: v for k, v in row.spec.model_dump(mode="json").items() if k != "seed"}


def _lines(row: Row, baseline: Row) -> Iterator[str]:
    for at, (path, ours, theirs) in enumerate(differing(row, baseline)):
        name = "<td></td>" if at else f'<th scope="row">{escape(row.name)}</th>'
        cells = (path, format_value(theirs.get(path)), format_value(ours.get(path)))
        yield f"<tr>{name}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
