"""Lines that commands print; control characters of foreign text are shown, not sent."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TextIO

import typer

from ablate.printable import printable

_OUR_STYLES = re.compile(r"(\x1b\[(?:0|1|2|1;31)m)")
"""Bold, faint, bold red, and the end of each."""


def echo(
    text: str | Path,
    *,
    err: bool = False,
    nl: bool = True,
    file: TextIO | None = None,
    is_styled: bool = False,
) -> None:
    """Print a text.

    Args:
        text: its control characters are shown as escape sequences.
        err: whether to print to standard error.
        nl: whether a newline follows.
        file: in place of standard output and error.
        is_styled: whether it has this package's own styles of a terminal, which are sent.
    """
    pieces = _OUR_STYLES.split(str(text)) if is_styled else [str(text)]
    safe = "".join(piece if at % 2 else printable(piece) for at, piece in enumerate(pieces))
    typer.echo(safe, file=file, err=err, nl=nl)


def echo_data(text: str) -> None:
    """Print a line of data: as it is, but on a terminal with control characters shown."""
    typer.echo(printable(text) if sys.stdout.isatty() else text)
