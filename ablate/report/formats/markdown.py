"""The table as a pipe table, for a README or a pull request."""

from __future__ import annotations

import re

from ablate.report.formats import TableFormat
from ablate.report.table import Table, aligned, joined_changes

_ESCAPED = str.maketrans(
    {character: f"\\{character}" for character in "\\`*[]|~#"} | {"<": "&lt;", ">": "&gt;"}
)
_LOOSE_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # may begin or end emphasis
_MOST_CHANGES = 4
"""Columns of changed paths; more are mostly empty, and share one."""


class Markdown(TableFormat):
    """A pipe table, as GitHub reads it."""

    name = "markdown"
    suffix = ".md"
    file_name = "table.md"

    def text(self, table: Table) -> str:
        question = [f"{_escaped(table.question)}", ""] if table.question else []
        joined = [joined_changes(block, _MOST_CHANGES) for block in table.blocks]
        blocks = [line for block in joined for line in (*_grid(block), "")]
        notes = [f"- **{_escaped(n.label)}**: {_escaped(n.text)}" for n in table.footnotes]
        answer = [f"**{_escaped(table.conclusion)}**", ""] if table.conclusion else []
        head = [f"## {_escaped(table.name)}", "", *question, *answer]
        return "\n".join([*head, *blocks, *notes]) + "\n"


def _grid(table: Table) -> list[str]:
    """Return the lines of one block, its columns aligned in the source too."""
    columns = []
    for at, column in enumerate(table.columns):
        cells = [line.cells[at] for line in table.lines]
        texts = aligned(cells) if column.is_number else [_escaped(cell.text) for cell in cells]
        if at == 0:
            texts[0] = f"**{texts[0]}**"
        head = _escaped(column.title)
        width = max(map(len, [head, *texts, "--:"]))
        rule = "-" * (width - 1) + (":" if column.is_number else "-")
        justify = str.rjust if column.is_number else str.ljust
        head, *texts = (justify(text, width) for text in (head, *texts))
        columns.append([head, rule, *texts])
    return [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]


def unescaped(text: str) -> str:
    """Return a text as it was before a table's Markdown escaped it."""
    plain = re.sub(r"\\(.)", r"\1", text)
    return plain.replace("&lt;", "<").replace("&gt;", ">")


def _escaped(text: str) -> str:
    return _LOOSE_UNDERSCORE.sub(r"\_", " ".join(text.split()).translate(_ESCAPED))
