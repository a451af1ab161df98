"""An experiment as one HTML page that needs no other file and no network."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template

from ablate.report.page.figures import figures
from ablate.report.page.results import results
from ablate.report.page.runs import citation, provenance, runs
from ablate.report.page.specs import specs
from ablate.report.page.translations import translations
from ablate.report.table import Table
from ablate.wording import counted


def page(table: Table) -> str:
    """Write ``table``, and what stands behind it if that is known, as a whole page.

    Light or dark as the reader's system is; on a phone each row is a list of its numbers, so that
    none is out of sight; on paper everything is open. Every text that comes from a user is escaped.
    """
    sections = [("results", "Results", results(table))]
    if table.details is not None:
        sections += [
            ("figures", "Figures", figures(table.details)),
            ("translations", "Translations", translations(table.details)),
            ("specs", "What was compared", specs(table.details)),
            ("runs", "Runs", runs(table)),
        ]
    sections.append(("provenance", "Provenance", provenance(table)))
    if table.details is not None:
        sections.append(("citation", "How to cite", citation(table.details)))
    sections = [section for section in sections if section[2]]
    return Template(_read("page.html")).substitute(
        title=escape(table.question or table.name),
        name=escape(table.name),
        conclusion=escape(table.conclusion),
        summary=_summary(table),
        contents=_contents([(name, title) for name, title, _ in sections]),
        sections="\n".join(_section(*section) for section in sections),
        style=_read("page.css"),
        script=_read("page.js"),
    )


def _summary(table: Table) -> str:
    rows, seeds = counted(len(table.lines), "row"), counted(len(table.seeds), "seed")
    return f"{rows}, {seeds} each"


def _contents(sections: list[tuple[str, str]]) -> str:
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in sections)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def _section(name: str, title: str, content: str) -> str:
    heading = f'<h2 id="{name}-title">{title}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">\n{heading}\n{content}\n</section>'


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
