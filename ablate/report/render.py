"""One table in any of its formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ablate.errors import SpecError
from ablate.report import formats as formats  # each format enters `FORMATS`
from ablate.report.cells import Table
from ablate.report.table_format import FORMATS, Screen, TableFormat
from ablate.store import write_whole
from ablate.wording import no_such


def render(
    table: Table,
    format_: str,
    width: int | None = None,
    *,
    is_coloured: bool = False,
    columns: Sequence[str] | None = None,
) -> str:
    """Write ``table`` in one of `FORMATS`, ending in a newline.

    Args:
        table: what to write.
        format_: name of the format.
        width: of the screen, in columns; None has room for everything.
        is_coloured: whether the screen has bold and faint faces.
        columns: which of the table's, as `columns.chosen` has them; unless given, those of the
            format: few in LaTeX and CSV, all elsewhere.

    Raises:
        SpecError: if there is no such format or column.
    """
    writer = format_class(format_)(Screen(width, is_coloured), columns)
    return writer.text(writer.selected(table))


def format_class(name: str) -> type[TableFormat]:
    """Return the format of a name.

    Raises:
        SpecError: if there is none.
    """
    if name not in FORMATS:
        raise SpecError(no_such("format", name, FORMATS))
    return FORMATS[name]


def format_of(path: Path, names: Iterable[str] = FORMATS) -> str:
    """Return which format of these ``names`` the suffix of a file stands for.

    Raises:
        SpecError: if it stands for none.
    """
    by_suffix = {FORMATS[name].suffix: name for name in names if FORMATS[name].suffix}
    if path.suffix.lower() not in by_suffix:
        known = ", ".join(by_suffix)
        raise SpecError(f"{path}: the suffix stands for no format; known: {known}; or say --format")
    return by_suffix[path.suffix.lower()]


def write_tables(table: Table, folder: Path) -> list[Path]:
    """Write the files of all formats that have one, each whole or not at all.

    Raises:
        StoreError: if a file cannot be written.
    """
    paths = []
    for name, cls in FORMATS.items():
        if cls.file_name is not None:
            write_whole(folder / cls.file_name, render(table, name))
            paths.append(folder / cls.file_name)
    return paths
