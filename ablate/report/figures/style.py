"""How all figures look, and how they are saved. No figure uses pyplot, which keeps state."""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ablate.store import writable, write_whole
from ablate.writing import atomic_write, csv_text

INK = "#111111"  # of text, and of the baseline
SOFT = "#6b6b73"  # of axes and remarks
FAINT = "#e4e4e8"  # of grids and bands

# Okabe and Ito's colours, told apart by nearly every eye; the yellow is too faint for a line
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.5, 1.5)))

PANELS_PER_LINE = 5  # of figures with a panel for every row
_LINES_OF_A_SCREEN = 40  # of what has more the scale stands above too

# for characters that matplotlib's own font has not; those that are installed are used
_FURTHER_FAMILIES = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Sans Symbols 2",
    "Noto Emoji",
    "Arial Unicode MS",
    "Unifont",
)

_PANEL_CHARACTERS = 24
_CHARACTER = 0.53  # width of a character over the size of the letters
_LEGEND_SIZE = 7  # points
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
    with mpl.rc_context({**_LOOK, "font.family": _families()}):
        yield


@functools.cache
def _families() -> list[str]:
    installed = set(font_manager.get_font_names())
    return ["sans-serif", *(name for name in _FURTHER_FAMILIES if name in installed)]


def add_legend(figure: Figure, text: str) -> None:
    """Write below a figure what its marks are, in as many lines as its width asks for."""
    width = int(72 * figure.get_figwidth() / (_CHARACTER * _LEGEND_SIZE))
    lines = "\n".join(textwrap.wrap(text, width))
    figure.supxlabel(lines, x=0.01, ha="left", size=_LEGEND_SIZE, color=SOFT)


def names_width(names: Iterable[str], size: float) -> float:
    """Return about how many inches the longest of some names takes, in letters of ``size``."""
    return max(map(len, names)) * _CHARACTER * size / 72


def draw_grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw faint lines behind what the axes show."""
    axes.grid(axis=axis, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def set_up_lines(axes: Axes, names: Sequence[str], band: float | None) -> None:
    """Give each name a line, from above, and shade what differs from 0 by a ``band`` at most."""
    if band:
        axes.axvspan(-band, band, color=FAINT, zorder=0)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if len(names) > _LINES_OF_A_SCREEN:
        axes.tick_params(axis="x", top=True, labeltop=True)
    axes.spines["left"].set_visible(False)
    draw_grid(axes, "x")


def write_at_0(axes: Axes, y: float, text: str) -> None:
    """Write a small remark beside 0, in place of a mark."""
    axes.annotate(f" {text}", (0, y), va="center", fontsize=7, color=SOFT)


def panel_title(row: str) -> str:
    """Return the name of a row in as many lines as the width of a narrow panel asks for."""
    return "\n".join(textwrap.wrap(row, _PANEL_CHARACTERS))


def remove_empty(panels: NDArray[np.object_], n: int) -> None:
    """Leave the first ``n`` panels of a grid; the lowest of each column has the ticks' labels."""
    for panel in panels.flat[n:]:
        panel.remove()
    for panel in panels.flat[max(0, n - panels.shape[1]) : n]:
        panel.tick_params(labelbottom=True)


@dataclass(frozen=True)
class Drawing:
    """A figure with the numbers that it shows."""

    name: str  # of its files, without a suffix
    title: str
    figure: Figure  # as drawn, within `look`
    numbers: Sequence[Mapping[str, Any]]  # a mapping for every line of its CSV

    def save(self, folder: Path) -> list[Path]:
        """Write it as SVG, PNG and CSV, each whole or not at all; return the files."""
        svg, png, numbers = (folder / f"{self.name}.{kind}" for kind in ("svg", "png", "csv"))
        for path in (svg, png):
            with writable(path), look(), atomic_write(path) as stream:
                self._write(stream, path.suffix[1:])
        write_whole(numbers, self.csv())
        return [svg, png, numbers]

    def svg(self) -> str:
        """Return it as SVG whose texts are texts, for a page with fonts of its own."""
        stream = io.BytesIO()
        with look(), mpl.rc_context({"svg.fonttype": "none"}):
            self._write(stream, "svg")
        return stream.getvalue().decode("utf-8")

    def csv(self) -> str:
        return csv_text(self.numbers)

    def _write(self, stream: IO[bytes], kind: str) -> None:
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type")) if kind == "svg" else {}
        self.figure.savefig(stream, format=kind, dpi=200, metadata=metadata)
