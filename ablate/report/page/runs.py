"""What a page says of the runs: each with its hash, how to make them again, how to cite them."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from ablate.analysis import Record
from ablate.registry import choosable
from ablate.report.page.results import definitions
from ablate.report.page.specs import differing
from ablate.report.provenance import PROVENANCE
from ablate.report.results import Details
from ablate.report.table import Table
from ablate.report.values import NOTHING, number

_DECIMALS = {"bleu": 2, "nll": 4}


def runs(table: Table) -> str:
    """Return every run with its hash, its status, and the scores of its seed."""
    details = table.details
    assert details is not None, "a page without runs has no such section"
    measures = [metric for metric in (details.results.bleu, details.results.loss) if metric]
    heads = ["row", "seed", "status", "hash", *measures, "finished"]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    lines = [_line(details, row.name, seed, measures) for row, seed in _keys(details)]
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
    commits = sorted({str(commit)[:12] for r in records if (commit := _commit(r))})
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
    sources = "\n".join(
        f"<dt><code>{escape(part)}</code></dt><dd>{escape(source)}</dd>"
        for part, source in dict(_sources(details)).items()
    )
    listed = f"\n<p>Sources of the parts in which rows differ:</p>\n<dl>\n{sources}\n</dl>"
    bibtex = f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'
    return bibtex + (listed if sources else "")


def _keys(details: Details) -> Iterator[tuple[Any, int]]:
    for row in details.experiment.rows:
        for seed in details.experiment.seeds:
            yield row, seed


def _line(details: Details, row: str, seed: int, measures: list[str]) -> str:
    record = details.records.get((row, seed), {})
    summary = next(each for each in details.results.summaries if each.name == row)
    scores = []
    for metric in measures:
        known = summary.metrics.get(metric)
        value = known.values.get(seed) if known else None
        decimals = _DECIMALS.get(metric.rpartition(".")[2], 4)
        scores.append(NOTHING if value is None else number(value, decimals))
    texts = [
        ("", str(seed)),
        ("", summary.outcomes[seed]),
        ("", f"<code>{escape(str(record.get('hash', NOTHING)))}</code>"),
        *((' class="n"', score) for score in scores),
        ("", escape(str(record.get("finished") or NOTHING))),
    ]
    cells = "".join(f"<td{face}>{text}</td>" for face, text in texts)
    return f'<tr><th scope="row">{escape(row)}</th>{cells}</tr>'


def _commit(record: Record) -> str | None:
    return (record.get("git") or {}).get("commit")


def _sources(details: Details) -> Iterator[tuple[str, str]]:
    """Yield the parts in which rows differ from the baseline, and those it has there."""
    baseline, *rows = details.experiment.rows
    for row in rows:
        for path, *values in differing(row, baseline):
            above = path.rpartition(".")[0]
            slot = above.rpartition(".")[2]
            table = choosable(slot)
            for name in (each.get(f"{above}.name") for each in values):
                if name in table:
                    yield f"{slot}: {name}", table[name].source
