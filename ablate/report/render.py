"""One table, six formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from ablate.report.cells import Table
from ablate.report.latex import latex
from ablate.report.machine import comma_separated, json_text
from ablate.report.markdown import markdown
from ablate.report.page import html
from ablate.report.terminal import terminal
from ablate.store import write_whole

Format = Literal["terminal", "markdown", "latex", "csv", "json", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)

_FORMATS: dict[Format, Callable[[Table], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
    "json": json_text,
    "html": html,
}
_FILES: dict[Format, str] = {"markdown": "table.md", "latex": "table.tex", "csv": "table.csv"}


def render(
    table: Table, format_: Format, width: int | None = None, *, is_coloured: bool = False
) -> str:
    """Write ``table`` in one of `FORMATS`, ending in a newline.

    Args:
        table: what to write.
        format_: name of the format.
        width: for ``terminal``, its columns; None has room for everything.
        is_coloured: for ``terminal``, whether it has bold and faint faces.
    """
    if format_ == "terminal":
        return terminal(table, width, is_coloured=is_coloured)
    return _FORMATS[format_](table)


def write_tables(table: Table, folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.tex`` and ``table.csv``, each whole or not at all.

    Raises:
        StoreError: if a file cannot be written.
    """
    paths = []
    for format_, name in _FILES.items():
        write_whole(folder / name, render(table, format_))
        paths.append(folder / name)
    return paths
