"""One HTML page that needs no other file."""

from __future__ import annotations

from ablate.errors import SpecError
from ablate.report.page import page
from ablate.report.render import TableFormat
from ablate.report.table import Table


class Html(TableFormat):
    """The table with figures, translations, specs and provenance, as far as they are known."""

    name = "html"
    suffix = ".html"

    def text(self, table: Table) -> str:
        if table.is_of_paper:
            raise SpecError("the page has a layout of its own; remove --layout")
        return page(table)
