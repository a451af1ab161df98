"""One HTML page that needs no other file and no network."""

from __future__ import annotations

import base64
import re
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from ablate.errors import SpecError
from ablate.report import page
from ablate.report.page.results import results
from ablate.report.page.runs import citation, provenance, runs, specs
from ablate.report.page.translations import translations
from ablate.report.render import TableFormat
from ablate.report.results import Details
from ablate.report.table import Table
from ablate.wording import counted

if TYPE_CHECKING:
    from ablate.report.figures import Drawing

_ID = re.compile(r'(\bid="|"#|url\(#)')
_NAMESPACE = re.compile(r'\s+(?:xmlns(?::xlink)?|version)="[^"]*"')
_TAG = re.compile(r"<[^>]+>")
_COLOUR = re.compile(r"(?<=[:\s])#[0-9a-f]{6}\b")


class Html(TableFormat):
    """The table with figures, translations, specs and provenance, as far as they are known.

    Light or dark as the reader's system is; on a phone each row is a list of its numbers, so that
    none is out of sight; on paper everything is open. Every text that comes from a user is escaped.
    """

    name = "html"
    suffix = ".html"

    def text(self, table: Table) -> str:
        if table.is_of_paper:
            raise SpecError("the page has a layout of its own; remove --layout")
        sections = [("results", "Results", results(table))]
        if table.details is not None:
            sections += [
                ("figures", "Figures", _figures(table.details)),
                ("translations", "Translations", translations(table.details)),
                ("specs", "What was compared", specs(table.details)),
                ("runs", "Runs", runs(table.details)),
            ]
        sections.append(("provenance", "Provenance", provenance(table)))
        if table.details is not None:
            sections.append(("citation", "How to cite", citation(table.details)))
        sections = [section for section in sections if section[2]]
        links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections)
        rows, seeds = counted(len(table.lines), "row"), counted(len(table.seeds), "seed")
        return Template(_read("page.html")).substitute(
            title=escape(table.question or table.name),
            name=escape(table.name),
            conclusion=escape(table.conclusion),
            summary=f"{rows}, {seeds} each",
            contents=f'<nav aria-label="Sections"><ul>{links}</ul></nav>',
            sections="\n".join(
                f'<section id="{name}" aria-labelledby="{name}-title">\n'
                f'<h2 id="{name}-title">{title}</h2>\n{content}\n</section>'
                for name, title, content in sections
            ),
            style=_read("page.css"),
            script=_read("page.js"),
        )


def _read(name: str) -> str:
    return resources.files(page).joinpath(name).read_text(encoding="utf-8")


def _figures(details: Details) -> str:
    """Return every figure for which there are numbers, as SVG, with the numbers to download."""
    from ablate.report.figures import drawings  # slow to import

    figures = []
    for drawing in drawings(details):
        numbers = base64.b64encode(drawing.csv().encode()).decode()
        title = escape(drawing.title)
        link = f'href="data:text/csv;charset=utf-8;base64,{numbers}" download="{drawing.name}.csv"'
        figures.append(f"""<figure>
<figcaption>{title} <a {link}>numbers (CSV)</a></figcaption>
<div class="wide" role="region" aria-label="{title}" tabindex="0">
{_inline_svg(drawing)}
</div>
</figure>""")
    return "\n".join(figures)


def _inline_svg(drawing: Drawing) -> str:
    """Return a figure as an element of a page.

    Its ids are its own among those of all figures, and the colours of text, lines and paper are
    the page's, light or dark.
    """
    from ablate.report.figures.style import COLOURS, FAINT, INK, SOFT

    variables = {INK: "ink", SOFT: "soft", FAINT: "faint", "#ffffff": "paper", "#000000": "ink"}
    variables |= {colour.lower(): f"c{at}" for at, colour in enumerate(COLOURS)}

    def colour(match: re.Match[str]) -> str:
        name = variables.get(match[0])
        return f"var(--{name})" if name else match[0]

    def tag(match: re.Match[str]) -> str:
        return _COLOUR.sub(colour, _ID.sub(rf"\1{drawing.name}-", match[0]))

    svg = drawing.svg()
    head, body = svg[svg.index("<svg") :].split(">", 1)
    head = f'{_NAMESPACE.sub("", head)} role="img" aria-label="{escape(drawing.title)}">'
    return head + _TAG.sub(tag, body).rstrip()
