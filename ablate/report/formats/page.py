"""The table as one HTML page that needs no other file and no script."""

from __future__ import annotations

from html import escape

from ablate.report.cells import Cell, Column, Line, Table
from ablate.report.table_format import TableFormat

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --soft: #5c5c66; --rule: #d9d9de;
  --paper: #fdfdfc; --band: #f4f4f1; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececef; --soft: #a3a3ad; --rule: #3a3a42;
  --paper: #161619; --band: #1f1f24; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 3rem 1.5rem 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 "Iowan Old Style", "Palatino Linotype", Palatino, Georgia,
  serif; }
h1 { margin: 0; font-size: 1.7rem; font-weight: 600; line-height: 1.25; text-wrap: balance; }
.name { margin: 0 0 .4rem; color: var(--soft); font: .85rem ui-monospace, Menlo, Consolas,
  monospace; }
.scroll { margin: 2rem 0 1.5rem; overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid currentColor; outline-offset: 4px; }
table { border-collapse: collapse; border-block: 2px solid var(--ink); font-size: .95rem;
  font-variant-numeric: lining-nums tabular-nums; }
th, td { padding: .45rem .8rem; text-align: left; vertical-align: baseline; }
th:first-child { padding-left: .3rem; }
.n { text-align: right; white-space: nowrap; }
thead th { vertical-align: bottom; border-bottom: 1px solid var(--ink); font-weight: 600; }
thead small { display: block; color: var(--soft); font-size: .82rem; font-weight: 400; }
tbody th { font-weight: 500; white-space: nowrap; }
tbody.baseline tr { background: var(--band); }
tbody.baseline th { font-weight: 700; }
tbody.baseline tr > * { border-bottom: 1px solid var(--rule); }
.soft { color: var(--soft); font-size: .88em; }
.conclusion { max-width: 68rem; margin: 1.5rem 0 0; font-size: 1.1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: 0;
  max-width: 68rem; color: var(--soft); font-size: .85rem; }
dt { max-width: 12rem; color: var(--ink); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
@media print { body { padding: 0; } .scroll { overflow: visible; } }
"""


class Html(TableFormat):
    """A page of its own."""

    name = "html"
    suffix = ".html"

    def text(self, table: Table) -> str:
        return html(table)


def html(table: Table) -> str:
    """Write ``table`` as a whole page, light or dark as the reader's system is."""
    title = escape(table.question or table.name)
    blocks = "\n".join(map(_block, table.blocks))
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
    if column.kind != "measure":
        return f"<td>{escape(cell.text)}</td>"
    aside = f' <span class="soft">({escape(cell.aside)})</span>' if cell.aside else ""
    return f'<td class="n">{escape(cell.value)}{escape(cell.mark)}{aside}</td>'
