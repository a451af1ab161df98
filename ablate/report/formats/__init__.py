"""The contract of a format of tables, and one table in any of them; each module is a format."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from ablate.errors import SpecError
from ablate.registry import EXTENSIBLE
from ablate.report.table import ALL, Table, chosen
from ablate.store import write_whole
from ablate.wording import no_such

FORMATS: dict[str, type[TableFormat]] = {}


class TableFormat(ABC):
    """A way to write a table as text; a class that inherits from it enters `FORMATS`.

    The screen has ``width`` columns, None has room for everything; ``is_coloured`` if it has bold
    and faint faces; without ``has_all_notes`` the few that are vital will do.
    """

    name: ClassVar[str]  # as ``ablate report --format`` has it
    file_name: ClassVar[str | None] = None  # of the file that every run of an experiment writes
    suffix: ClassVar[str] = ""  # of files for which ``ablate report --output`` takes this format
    default_columns: ClassVar[str] = ALL  # or ``compact``, the few that a paper has room for

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        width: int | None = None,
        *,
        is_coloured: bool = False,
        has_all_notes: bool = True,
    ) -> None:
        self.columns = list(columns or [self.default_columns])
        self.width, self.is_coloured, self.has_all_notes = width, is_coloured, has_all_notes

    def __init_subclass__(cls) -> None:
        if cls.name in FORMATS:
            raise TypeError(f"two formats are called {cls.name!r}")
        FORMATS[cls.name] = cls

    def selected(self, table: Table) -> Table:
        """Return ``table`` with the columns that are asked for."""
        if table.is_of_paper and self.columns == [self.default_columns]:
            return table  # its layout has chosen them
        return chosen(table, self.columns)

    @abstractmethod
    def text(self, table: Table) -> str:
        """Return ``table``, ending in a newline."""


EXTENSIBLE.append(TableFormat)


def render(
    table: Table,
    format_: str,
    width: int | None = None,
    *,
    is_coloured: bool = False,
    has_all_notes: bool = True,
    columns: Sequence[str] | None = None,
) -> str:
    """Write ``table`` in one of `FORMATS`, with the columns of `table.chosen` or the format's."""
    writer = format_class(format_)(
        columns, width, is_coloured=is_coloured, has_all_notes=has_all_notes
    )
    return writer.text(writer.selected(table))


def format_class(name: str) -> type[TableFormat]:
    """Return the format of a name."""
    if name not in FORMATS:
        raise SpecError(no_such("format", name, FORMATS))
    return FORMATS[name]


def format_of(path: Path, names: Iterable[str] = FORMATS) -> str:
    """Return which format of these ``names`` the suffix of a file stands for."""
    by_suffix = {FORMATS[name].suffix: name for name in names if FORMATS[name].suffix}
    if path.suffix.lower() not in by_suffix:
        known = ", ".join(by_suffix)
        raise SpecError(f"{path}: the suffix stands for no format; known: {known}; or say --format")
    return by_suffix[path.suffix.lower()]


def write_tables(table: Table, folder: Path) -> list[Path]:
    """Write the files of all formats that have one, each whole or not at all."""
    paths = {name: folder / cls.file_name for name, cls in FORMATS.items() if cls.file_name}
    for name, path in paths.items():
        write_whole(path, render(table, name))
    return list(paths.values())


for _module in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):  # each enters `FORMATS`
    importlib.import_module(_module.name)
