"""One HTML page that needs no other file."""

from __future__ import annotations

from ablate.report.cells import Table
from ablate.report.page import page
from ablate.report.table_format import TableFormat


class Html(TableFormat):
    """The table with figures, translations, specs and provenance, as far as they are known."""

    name = "html"
    suffix = ".html"

    def text(self, table: Table) -> str:
        return page(table)
