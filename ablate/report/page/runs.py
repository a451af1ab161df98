"""What a page says of the runs: specs, hashes, how to make them again, and how to cite them."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from ablate.config import Row
from ablate.config.source import dump
from ablate.record import leaves
from ablate.registry import choosable
from ablate.report.page.results import definitions
from ablate.report.provenance import PROVENANCE
from ablate.report.results import Details
from ablate.report.table import Table
from ablate.report.values import NOTHING, format_value, number

_DECIMALS = {"bleu": 2, "nll": 4}
Values = dict[str, Any]
"""By dotted path."""


def specs(details: Details) -> str:
    """Return how each row differs, in all values that follow from its change, and the baseline."""
    baseline, *rows = details.experiment.rows
    lines = []
    for row in rows:
        for at, (path, ours, theirs) in enumerate(_differing(row, baseline)):
            name = "<td></td>" if at else f'<th scope="row">{escape(row.name)}</th>'
            cells = (path, format_value(theirs.get(path)), format_value(ours.get(path)))
            lines.append(f"<tr>{name}{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>")
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
<pre tabindex="0"><code>{escape(dump(_plain(baseline)))}</code></pre>
</details>"""


def runs(details: Details) -> str:
    """Return every run with its hash, its status, and the scores of its seed."""
    measures = [metric for metric in (details.results.bleu, details.results.loss) if metric]
    heads = ["row", "seed", "status", "hash", *measures, "finished"]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    lines = []
    for summary in details.results.summaries:
        for seed, status in summary.outcomes.items():
            record = details.records.get((summary.name, seed), {})
            hash_ = f"<code>{escape(str(record.get('hash', NOTHING)))}</code>"
            texts = [("", str(seed)), ("", status), ("", hash_)]
            for metric in measures:
                known = summary.metrics.get(metric)
                value = known.values.get(seed) if known else None
                decimals = _DECIMALS.get(metric.rpartition(".")[2], 4)
                score = NOTHING if value is None else number(value, decimals)
                texts.append((' class="n"', score))
            texts.append(("", escape(str(record.get("finished") or NOTHING))))
            cells = "".join(f"<td{face}>{text}</td>" for face, text in texts)
            lines.append(f'<tr><th scope="row">{escape(summary.name)}</th>{cells}</tr>')
    return f"""<details>
<summary>Every run, by row and seed</summary>
<div class="wide" role="region" aria-label="Every run" tabindex="0">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{chr(10).join(lines)}
</tbody>
</table>
</div>
</details>"""


def provenance(table: Table) -> str:
    """Return where the numbers come from, and the commands that make them and this page again."""
    notes = definitions([note for note in table.footnotes if note.label in PROVENANCE])
    commands = ""
    if table.details is not None:
        arguments = table.details.arguments
        lines = (f"ablate run {arguments}", f"ablate report {arguments} --output page.html")
        commands = f'\n<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'
    return f"{notes}{commands}".strip()


def citation(details: Details) -> str:
    """Return what to cite: this toolkit as it was, and the sources of the parts that differ."""
    records = list(details.records.values())
    versions = sorted({str(r["versions"]["ablate"]) for r in records if "versions" in r})
    known = ((r.get("git") or {}).get("commit") for r in records)
    commits = sorted({str(commit)[:12] for commit in known if commit})
    year = max((str(r.get("started", ""))[:4] for r in records), default="")
    notes = f"Version {', '.join(versions)}" if versions else ""
    notes += f", commit {', '.join(commits)}" if commits else ""
    lines = [
        "@software{ablate,",
        "  title  = {ablate: config-driven ablations of the translation Transformer},",
        "  author = {{The ablate authors}},",
        *([f"  year   = {{{year}}},"] if year else []),
        f"  note   = {{{notes}}}",
        "}",
    ]
    bibtex = f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'
    sources = "\n".join(
        f"<dt><code>{escape(part)}</code></dt><dd>{escape(source)}</dd>"
        for part, source in dict(_sources(details)).items()
    )
    listed = f"\n<p>Sources of the parts in which rows differ:</p>\n<dl>\n{sources}\n</dl>"
    return bibtex + (listed if sources else "")


def _differing(row: Row, baseline: Row) -> Iterator[tuple[str, Values, Values]]:
    """Yield the paths at which two rows differ, each with all values of the one and the other."""
    ours, theirs = (dict(leaves(_plain(each))) for each in (row, baseline))
    for path in dict.fromkeys((*ours, *theirs)):
        if ours.get(path) != theirs.get(path):
            yield path, ours, theirs


def _plain(row: Row) -> dict[str, Any]:
    return {k: v for k, v in row.spec.model_dump(mode="json").items() if k != "seed"}


def _sources(details: Details) -> Iterator[tuple[str, str]]:
    """Yield the parts in which rows differ from the baseline, and those it has there."""
    baseline, *rows = details.experiment.rows
    for row in rows:
        for path, *values in _differing(row, baseline):
            above = path.rpartition(".")[0]
            slot = above.rpartition(".")[2]
            table = choosable(slot)
            for name in (each.get(f"{above}.name") for each in values):
                if name in table:
                    yield f"{slot}: {name}", table[name].source
