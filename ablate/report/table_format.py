"""The contract of a format of tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ablate.registry import EXTENSIBLE
from ablate.report.cells import Table
from ablate.report.columns import ALL, chosen

FORMATS: dict[str, type[TableFormat]] = {}


@dataclass(frozen=True)
class Screen:
    """Where a table is read.

    Attributes:
        width: in columns; None has room for everything.
        is_coloured: whether it has bold and faint faces.
    """

    width: int | None = None
    is_coloured: bool = False


class TableFormat(ABC):
    """A way to write a table as text; a class that inherits from it enters `FORMATS`.

    Attributes:
        name: as ``ablate report --format`` has it.
        file_name: of the file that every run of an experiment writes; None writes none.
        suffix: of files for which ``ablate report --output`` takes this format; empty for none.
        default_columns: ``all``, or ``compact``, the few that a paper has room for.
        columns: which are asked for; None for the default.
        screen: where the text is read, for those that depend on it.
    """

    name: ClassVar[str]
    file_name: ClassVar[str | None] = None
    suffix: ClassVar[str] = ""
    default_columns: ClassVar[str] = ALL

    def __init__(self, screen: Screen, columns: Sequence[str] | None = None) -> None:
        self.screen = screen
        self.columns = list(columns or [self.default_columns])

    def __init_subclass__(cls) -> None:
        if cls.name in FORMATS:
            raise TypeError(f"two formats are called {cls.name!r}")
        FORMATS[cls.name] = cls

    def selected(self, table: Table) -> Table:
        """Return ``table`` with the columns that are asked for.

        Raises:
            SpecError: if there is no such column, or the format has no columns to choose.
        """
        if table.is_of_paper and self.columns == [self.default_columns]:
            return table  # its layout has chosen them
        return chosen(table, self.columns)

    @abstractmethod
    def text(self, table: Table) -> str:
        """Return ``table``, ending in a newline."""


EXTENSIBLE.append(TableFormat)
