"""One HTML page that needs no other file and no network."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import chain
from string import Template
from typing import TYPE_CHECKING, Any

from ablate.analysis.measures import Verdict
from ablate.analysis.statistics import paired_differences
from ablate.analysis.summary import Summary, is_measured_once
from ablate.config import Row
from ablate.config.tree import dump
from ablate.errors import SpecError
from ablate.record import leaves
from ablate.registry import choosable
from ablate.report.formats import TableFormat
from ablate.report.provenance import PROVENANCE
from ablate.report.results import Details
from ablate.report.table import Cell, Column, Footnote, Line, Table, joined_changes
from ablate.report.translations import translations
from ablate.report.values import MINUS, NOTHING, format_value, number, signed
from ablate.wording import counted

if TYPE_CHECKING:
    from ablate.report.figures import Drawing

_MOST_CHANGES = 2  # columns of changed paths
_APART = ("params.", "flops.", "train.", "speed.", "memory.", "over.")
"""What columns begin with that have a table of their own."""
_SEED_DECIMALS = 3
_DIFFERENCE, _INTERVAL = ".difference", ".interval"
_DECIMALS = {"bleu": 2, "nll": 4}
_ID = re.compile(r'(\bid="|"#|url\(#)')
_NAMESPACE = re.compile(r'\s+(?:xmlns(?::xlink)?|version)="[^"]*"')
_TAG = re.compile(r"<[^>]+>")
_NUMBER = re.compile(rf"\[?([+{MINUS}-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:, |$)")  # the low end of two
_COLOUR = re.compile(r"(?<=[:\s])#[0-9a-f]{6}\b")

Values = dict[str, Any]  # by dotted path


class Html(TableFormat):
    """The table with figures, translations, specs and provenance, as far as they are known.

    Light or dark as the reader's system is; on a phone each row is a list of its numbers, so that
    none is out of sight; on paper everything is open. Every text that comes from a user is escaped.
    """

    name = "html"
    suffix = ".html"

    def text(self, table: Table) -> str:
        if table.is_of_paper:
            raise SpecError("the page has a layout of its own; remove --layout")
        sections = [("results", "Results", _results(table))]
        if table.contexts is not None:
            sections += _contexts(table)
        if table.details is not None:
            sections += [
                ("figures", "Figures", _figures(table)),
                ("translations", "Translations", translations(table.details)),
                ("specs", "What was compared", _specs(table.details)),
                ("runs", "Runs", _runs(table.details)),
            ]
        sections.append(("provenance", "Provenance", _provenance(table)))
        tables = [table] if table.contexts is None else [*table.contexts.tables.values()]
        details = [each.details for each in tables if each.details is not None]
        sections.append(("citation", "How to cite", _citation(details) if details else ""))
        sections = [section for section in sections if section[2]]
        links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections)
        results = [each.results for each in tables if each.results]
        n_seeds = [len(row.outcomes) for each in results for row in each.summaries]
        rows, seeds = counted(len(table.lines), "row"), counted(max(n_seeds), "seed")
        if min(n_seeds) < max(n_seeds):  # looks have decided a row
            seeds = f"{min(n_seeds)} to {seeds}"
        return Template(_read("page.html")).substitute(
            title=escape(table.question or table.name),
            name=escape(table.name),
            conclusion=escape(table.conclusion),
            summary=f"{rows}, {seeds} each",
            contents=f'<nav aria-label="Sections"><ul>{links}</ul></nav>',
            sections="\n".join(
                f'<section id="{name}" aria-labelledby="{name}-title">\n'
                f'<h2 id="{name}-title">{title}</h2>\n{content}\n</section>'
                for name, title, content in sections
            ),
            style=_read("page.css"),
            script=_read("page.js"),
        )


def _contexts(table: Table) -> list[tuple[str, str, str]]:
    """Return the figure of all contexts, and a section for each."""
    assert table.contexts is not None, "it is the overview of some"
    sections = [("figures", "Figures", _figures(table))]
    for name, each in table.contexts.tables.items():
        content = [f"<p>{escape(each.conclusion)}</p>", _results(each)]
        if each.details is not None:
            prefix = f"{name}-"
            content += [_figures(each, prefix), _specs(each.details), _runs(each.details)]
        content.append(_provenance(each))
        sections.append((f"context-{name}", escape(name), "\n".join(content)))
    return sections


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _results(table: Table) -> str:
    """Return the tables, with one of costs, and the footnotes that say how to read them."""
    parts = []
    for block in (joined_changes(block, _MOST_CHANGES) for block in table.blocks):
        high = [at for at, column in enumerate(block.columns) if column.key.startswith(_APART)]
        low = [at for at in range(len(block.columns)) if at not in high]
        parts += [block.only(low), block.only([0, *high])] if high else [block]
    notes = _definitions([note for note in table.footnotes if note.label not in PROVENANCE])
    return "\n".join([*map(_table, parts), notes])


def _definitions(notes: Sequence[Footnote]) -> str:
    lines = [f"<dt>{escape(note.label)}</dt><dd>{escape(note.text)}</dd>" for note in notes]
    return "\n".join(["<dl>", *lines, "</dl>"]) if lines else ""


def _table(table: Table) -> str:
    label = ", ".join(column.title for column in table.columns if column.kind != "row")
    rows = []
    for at, line in enumerate(table.lines):
        cells = (_cell(table, line, *both) for both in zip(table.columns, line.cells, strict=True))
        rows.append(f'<tr role="row" data-row="{at}">{"".join(cells)}</tr>')
    body = "\n".join(rows[1:])
    return f"""<table class="cards" role="table" aria-label="{escape(label)}">
<thead role="rowgroup">
<tr role="row">{"".join(map(_head, table.columns))}</tr>
</thead>
<tbody role="rowgroup" class="baseline">
{rows[0]}
</tbody>
<tbody role="rowgroup">
{body}
</tbody>
</table>"""


def _head(column: Column) -> str:
    face = ' class="n"' if column.is_number else ""
    detail = f" <small>{escape(column.detail)}</small>" if column.detail else ""
    text = "row" if column.kind == "row" else escape(column.header)
    return f'<th role="columnheader" scope="col"{face}>{text}{detail}</th>'


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
        "value": _value(table, line.summary, column.key, cell.value),
        "seeds": _seeds(table, line.summary, column.key) if inner else None,
    }
    attributes = "".join(f' data-{key}="{escape(text)}"' for key, text in data.items() if text)
    return f'<td role="cell" class="{face}"{attributes}>{inner}</td>'


def _value(table: Table, summary: Summary, key: str, text: str) -> str | None:
    """Return what a column is sorted by where that is a number: in full, or as a cell has it."""
    speed, value = summary.speeds.get(key), None
    if key == "done":
        value = float(summary.count("done"))
    elif speed is not None:
        value = speed.ratio
    elif key in summary.metrics:
        value = summary.metrics[key].mean
    elif _DIFFERENCE in key and table.results is not None:
        difference = table.results.difference(summary.name, key.partition(_DIFFERENCE)[0])
        value = difference.estimate if difference else None
    elif number_at_start := _NUMBER.match(text):
        value = float(number_at_start[1].replace(MINUS, "-"))
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


def _figures(table: Table, prefix: str = "") -> str:
    from ablate.report.figures import drawings  # slow to import

    return "\n".join(_figure(drawing, prefix) for drawing in drawings(table))


def _figure(drawing: Drawing, prefix: str) -> str:
    """Return a figure as SVG, with the numbers to download; ids begin with the prefix."""
    numbers = base64.b64encode(drawing.csv().encode()).decode()
    title, name = escape(drawing.title), f"{prefix}{drawing.name}"
    link = f'href="data:text/csv;charset=utf-8;base64,{numbers}" download="{name}.csv"'
    return f"""<figure>
<figcaption>{title} <a {link}>numbers (CSV)</a></figcaption>
<div class="wide" role="region" aria-label="{title}" tabindex="0">
{_inline_svg(drawing, prefix)}
</div>
</figure>"""


def _inline_svg(drawing: Drawing, prefix: str) -> str:
    """Return a figure as an element of a page, with ids of its own and the page's colours."""
    from ablate.report.figures.style import COLOURS, FAINT, INK, SOFT

    variables = {INK: "ink", SOFT: "soft", FAINT: "faint", "#ffffff": "paper", "#000000": "ink"}
    variables |= {colour.lower(): f"c{at}" for at, colour in enumerate(COLOURS)}

    def colour(match: re.Match[str]) -> str:
        name = variables.get(match[0])
        return f"var(--{name})" if name else match[0]

    def tag(match: re.Match[str]) -> str:
        return _COLOUR.sub(colour, _ID.sub(rf"\1{prefix}{drawing.name}-", match[0]))

    svg = drawing.svg()
    head, body = svg[svg.index("<svg") :].split(">", 1)
    head = f'{_NAMESPACE.sub("", head)} role="img" aria-label="{escape(drawing.title)}">'
    return head + _TAG.sub(tag, body).rstrip()


def _specs(details: Details) -> str:
    baseline, *rows = details.experiment.rows
    lines = []
    for row in rows:
        for at, (path, ours, theirs) in enumerate(_differing(row, baseline)):
            name = "<td></td>" if at else f'<th scope="row">{escape(row.name)}</th>'
            cells = (path, format_value(theirs.get(path)), format_value(ours.get(path)))
            lines.append(f"<tr>{name}{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>")
    caption = "Every value in which a row differs from the baseline, defaults included"
    table = _wide("Differences", ("row", "value", "baseline", "here"), lines, caption)
    return f"""{table if lines else ""}
<details>
<summary>The whole spec of the baseline, without its seed</summary>
<pre tabindex="0"><code>{escape(dump(_plain(baseline)))}</code></pre>
</details>"""


def _runs(details: Details) -> str:
    measures = [metric for metric in (details.results.bleu, details.results.loss) if metric]
    heads = ["row", "seed", "status", "hash", *measures, "finished"]
    lines = []
    for summary in details.results.summaries:
        for seed, status in summary.outcomes.items():
            record = details.records.get((summary.name, seed), {})
            hash_ = f"<code>{escape(str(record.get('hash', NOTHING)))}</code>"
            cells = [f"<td>{text}</td>" for text in (seed, status, hash_)]
            for metric in measures:
                known = summary.metrics.get(metric)
                value = known.values.get(seed) if known else None
                decimals = _DECIMALS.get(metric.rpartition(".")[2], 4)
                score = NOTHING if value is None else number(value, decimals)
                cells.append(f'<td class="n">{score}</td>')
            cells.append(f"<td>{escape(str(record.get('finished') or NOTHING))}</td>")
            lines.append(f'<tr><th scope="row">{escape(summary.name)}</th>{"".join(cells)}</tr>')
    return f"""<details>
<summary>Every run, by row and seed</summary>
{_wide("Every run", heads, lines)}
</details>"""


def _wide(label: str, heads: Sequence[str], lines: Sequence[str], caption: str = "") -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    above = f"<caption>{caption}</caption>\n" if caption else ""
    return f"""<div class="wide" role="region" aria-label="{label}" tabindex="0">
<table>
{above}<thead><tr>{head}</tr></thead>
<tbody>
{chr(10).join(lines)}
</tbody>
</table>
</div>"""


def _provenance(table: Table) -> str:
    notes = _definitions([note for note in table.footnotes if note.label in PROVENANCE])
    commands = ""
    if table.details is not None:
        arguments = table.details.arguments
        lines = (f"ablate run {arguments}", f"ablate report {arguments} --output page.html")
        commands = f'\n<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'
    return f"{notes}{commands}".strip()


def _citation(details: Sequence[Details]) -> str:
    records = [record for each in details for record in each.records.values()]
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
        for part, source in dict(chain.from_iterable(map(_sources, details))).items()
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
