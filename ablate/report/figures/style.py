"""How all figures look, and how they are saved. No figure uses pyplot, which keeps state."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ablate.errors import StoreError
from ablate.store import write_whole
from ablate.writing import atomic_write

INK = "#111111"
"""Of text, and of the baseline."""

SOFT = "#6b6b73"
"""Of axes and remarks."""

FAINT = "#e4e4e8"
"""Of grids and bands."""

# Okabe and Ito's colours, told apart by nearly every eye; the yellow is too faint for a line
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))

_LOOK: dict[Any, Any] = {
    "font.size": 9,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.hashsalt": "ablate",  # the same numbers give the same file
}


@contextmanager
def look() -> Iterator[None]:
    """Draw in the look of all figures while the block goes on."""
    with mpl.rc_context(_LOOK):
        yield


def saved(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Save a figure as SVG and PNG, so that no file is seen half written; return the files.

    Raises:
        StoreError: if a file cannot be written.
    """
    paths = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        try:
            with atomic_write(path) as stream:
                figure.savefig(stream, format=path.suffix[1:], dpi=200, metadata=metadata)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error
    return paths


def saved_numbers(rows: Sequence[Mapping[str, Any]], folder: Path, name: str) -> Path:
    """Write the numbers that a figure shows as CSV; return the file.

    Raises:
        StoreError: if it cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = folder / f"{name}.csv"
    write_whole(path, text.getvalue())
    return path
