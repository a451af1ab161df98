"""Output of the commands: control characters of foreign text are shown, not sent.

Rich is imported by the functions that need it, because that takes time.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ablate.printable import SCHEMA, json_text, printable

if TYPE_CHECKING:
    from rich.table import Table

    from ablate import report
    from ablate.console import Console

_OUR_STYLES = re.compile(r"(\x1b\[(?:0|1|2|1;31)m)")
"""Bold, faint, bold red, and the end of each."""
_PIPE_WIDTH = 1000
"""Columns of a pipe, so that lines are not wrapped."""
_WITHOUT_FACES = ("dumb", "unknown")
"""Values of ``$TERM`` for terminals that print the codes of styles as text."""
_SCREEN = (100, 24)
"""Columns and lines of a table that is not for a terminal, unless ``$COLUMNS`` is set."""


def echo(
    text: str | Path,
    *,
    err: bool = False,
    nl: bool = True,
    is_styled: bool = False,
) -> None:
    """Print a text, its control characters as escape sequences.

    If it ``is_styled``, the styles that this package writes into texts are sent as they are.
    """
    pieces = _OUR_STYLES.split(str(text)) if is_styled else [str(text)]
    safe = "".join(piece if at % 2 else printable(piece) for at, piece in enumerate(pieces))
    typer.echo(safe, err=err, nl=nl)


def echo_data(text: str) -> None:
    """Print a line of data: as it is, but on a terminal with control characters shown."""
    typer.echo(printable(text) if sys.stdout.isatty() else text)


def echo_rendered(lines: Sequence[str]) -> None:
    """Print lines that a `console_of_output` has rendered, with its colours."""
    typer.echo("\n".join(lines))


def echo_json(data: Any) -> None:
    """Print plain data as JSON; an object has the version of what commands print."""
    echo(json_text({"schema": SCHEMA, **data} if isinstance(data, dict) else data))


def echo_documents(documents: Mapping[str, Any]) -> None:
    """Print as JSON the document of an experiment, under the name "", or those of its contexts."""
    echo_json(documents.get("", {"contexts": documents}))


def print_table(
    table: report.Table,
    form: str | None = None,
    output: Path | None = None,
    columns: Sequence[str] | None = None,
    *,
    is_wide: bool = False,
    has_all_notes: bool = False,
) -> None:
    """Print a table of results, or write it to a file, in the format of its suffix.

    What a terminal shows has the vital notes, unless all are asked for.
    """
    from ablate import report

    form = form or ("terminal" if output is None else report.format_of(output))
    has_all_notes = has_all_notes or output is not None
    render = functools.partial(
        report.render, table, form, columns=columns, has_all_notes=has_all_notes
    )
    print_or_write(render, output, is_wide=is_wide)


def print_or_write(render: Callable[..., str], output: Path | None, *, is_wide: bool) -> None:
    """Print a text that depends on the width and colours of the terminal, or write it to a file."""
    width = None if is_wide else shutil.get_terminal_size(_SCREEN).columns
    if output is None:
        is_coloured = sys.stdout.isatty() and os.environ.get("TERM") not in _WITHOUT_FACES
        echo(render(width=width, is_coloured=is_coloured), nl=False, is_styled=True)
    else:
        from ablate.store import write_whole

        write_whole(output, render(width=width))


def console_of_output() -> Console:
    """Return a console that prints to standard output, without markup."""
    from ablate.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def waiting(reason: str) -> Iterator[None]:
    """Show on a terminal why there is no output yet."""
    from ablate.console import Console

    console = Console(stderr=True)
    with console.status(reason) if console.is_terminal else nullcontext():
        yield


def print_rows(console: Console, grid: Table, rows: Sequence[Sequence[str]]) -> None:
    """Print rows in the columns of a grid without a box, as rich does.

    If every row fits into a line, they are printed without rich, which takes half a millisecond
    for each.
    """
    from rich.cells import cell_len
    from rich.text import Text

    headers = [str(column.header) for column in grid.columns]
    widths = [max(map(cell_len, cells)) for cells in zip(headers, *rows, strict=True)]
    fits = sum(widths) + 2 * len(widths) - 2 <= console.width
    if not fits or not all(cell.isprintable() for row in rows for cell in row):
        for row in rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
        return

    def line(cells: Sequence[str]) -> str:
        pads = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        columns = zip(cells, pads, grid.columns, strict=True)
        return "  ".join(p + c if column.justify == "right" else c + p for c, p, column in columns)

    console.out(line(headers), style="bold")
    if rows:
        console.out("\n".join(map(line, rows)))
