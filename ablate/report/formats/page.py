"""The table as one HTML page that needs no other file and no script."""

from __future__ import annotations

from html import escape

from ablate.report.cells import Cell, Column, Line, Table
from ablate.report.columns import by_cost, joined_changes
from ablate.report.table_format import TableFormat

_MOST_CHANGES = 2  # columns of changed paths
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --soft: #5c5c66; --rule: #d9d9de;
  --paper: #fdfdfc; --band: #8881; --shade: #0004; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececef; --soft: #a3a3ad; --rule: #3a3a42;
  --paper: #161619; --band: #8882; --shade: #fff5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 3rem 1.5rem 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 "Iowan Old Style", "Palatino Linotype", Palatino, Georgia,
  serif; }
h1 { margin: 0; font-size: 1.7rem; font-weight: 600; line-height: 1.25; text-wrap: balance; }
.name { margin: 0 0 .4rem; color: var(--soft); font: .85rem ui-monospace, Menlo, Consolas,
  monospace; }
.scroll { width: fit-content; max-width: 100%; margin: 2rem 0 1.5rem; overflow-x: auto; background:
  linear-gradient(to right, var(--paper), transparent) left / 3rem 100%,
  linear-gradient(to left, var(--paper), transparent) right / 3rem 100%,
  linear-gradient(to right, var(--shade), transparent) left / 1rem 100%,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
.scroll:focus-visible { outline: 2px solid currentColor; outline-offset: 4px; }
table { border-collapse: collapse; border-block: 2px solid var(--ink); font-size: .95rem;
  font-variant-numeric: lining-nums tabular-nums; }
th, td { padding: .45rem .6rem; text-align: left; vertical-align: baseline; }
th:first-child { padding-left: .3rem; }
.n { text-align: right; white-space: nowrap; }
thead th { vertical-align: bottom; border-bottom: 1px solid var(--ink); font-weight: 600; }
thead small { display: block; color: var(--soft); font-size: .88em; font-weight: 400; }
tbody th { font-weight: 500; min-width: 6rem; max-width: 16rem; overflow-wrap: anywhere; }
td > span { min-width: 0; overflow-wrap: anywhere; }
.verdict { min-width: 6.5em; }
tbody.baseline tr { background: var(--band); }
tbody.baseline th { font-weight: 700; }
tbody.baseline tr > * { border-bottom: 1px solid var(--rule); }
.soft { color: var(--soft); font-size: .88em; }
.conclusion { max-width: 68rem; margin: 1.5rem 0 0; font-size: 1.1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: 0;
  max-width: 68rem; color: var(--soft); font-size: .85rem; }
dt { max-width: 12rem; color: var(--ink); }
dd { margin: 0; overflow-wrap: anywhere; }
@media screen and (max-width: 62rem) {
  body { padding: 1.5rem 1rem 3rem; }
  .scroll { width: auto; }
  table, tbody, tr, tbody th, td { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tbody tr { padding: .5rem 0; border-bottom: 1px solid var(--rule); }
  tbody th { max-width: none; padding: .2rem .3rem; font-size: 1.05rem; }
  td, .n { display: flex; justify-content: space-between; gap: 1rem; padding: .1rem .3rem;
    text-align: right; white-space: normal; }
  td::before { content: attr(data-label); color: var(--soft); text-align: left; }
  td:empty { display: none; }
  tbody.baseline tr > * { border-bottom: 0; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .4rem; }
}
@media print {
  body { padding: 0; font-size: 9pt; }
  .scroll { overflow: visible; background: none; margin: 1rem 0; }
  table { font-size: 7.5pt; }
  th, td { padding: .25rem .3rem; }
  tbody th { min-width: 6em; max-width: 14em; }
  dl { font-size: 7.5pt; }
  .conclusion { font-size: 9pt; }
  tr { break-inside: avoid; }
}
"""


class Html(TableFormat):
    """A page of its own."""

    name = "html"
    suffix = ".html"

    def text(self, table: Table) -> str:
        return html(table)


def html(table: Table) -> str:
    """Write ``table`` as a whole page, light or dark as the reader's system is.

    The columns of what rows cost stand below the others. Where there is little room, each row is a
    list of its numbers, so that none is out of sight; where a table is wider than its page even so,
    a shade at its edge says that there is more.
    """
    title = escape(table.question or table.name)
    parts = [
        part for block in table.blocks for part in by_cost(joined_changes(block, _MOST_CHANGES))
    ]
    blocks = "\n".join(map(_block, parts))
    notes = "\n".join(
        f"<dt>{escape(note.label)}</dt><dd>{escape(note.text)}</dd>" for note in table.footnotes
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<p class="name">{escape(table.name)}</p>
<h1>{title}</h1>
{blocks}
<dl>
{notes}
</dl>
<p class="conclusion">{escape(table.conclusion)}</p>
</main>
</body>
</html>
"""


def _block(table: Table) -> str:
    head = "".join(_head(column) for column in table.columns)
    baseline, *variants = (_row(table, line) for line in table.lines)
    body = "\n".join(variants)
    return f"""<div class="scroll" role="region" aria-label="Results" tabindex="0">
<table>
<thead>
<tr>{head}</tr>
</thead>
<tbody class="baseline">
{baseline}
</tbody>
<tbody>
{body}
</tbody>
</table>
</div>"""


def _head(column: Column) -> str:
    face = ' class="n"' if column.is_number else ""
    detail = f" <small>{escape(column.detail)}</small>" if column.detail else ""
    text = escape(column.header) or "row"
    return f'<th scope="col"{face}>{text}{detail}</th>'


def _row(table: Table, line: Line) -> str:
    cells = zip(table.columns, line.cells, strict=True)
    return f"<tr>{''.join(_cell(column, cell) for column, cell in cells)}</tr>"


def _cell(column: Column, cell: Cell) -> str:
    if column.kind == "row":
        return f'<th scope="row">{escape(cell.value)}</th>'
    aside = f' <span class="soft">({escape(cell.aside)})</span>' if cell.aside else ""
    text = f"{escape(cell.value)}{escape(cell.mark)}{aside}"
    face = {"measure": "n", "verdict": "verdict"}.get(column.kind, "text")
    inner = f"<span>{text}</span>" if text else ""
    return f'<td class="{face}" data-label="{escape(column.title)}">{inner}</td>'
