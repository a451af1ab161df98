"""The figures of a page: SVG that follows the page's colours, and the numbers to download."""

from __future__ import annotations

import base64
import re
from html import escape
from typing import TYPE_CHECKING

from ablate.report.results import Details

if TYPE_CHECKING:
    from ablate.report.figures import Drawing

_ID = re.compile(r'(\bid="|"#|url\(#)')
_NAMESPACE = re.compile(r'\s+(?:xmlns(?::xlink)?|version)="[^"]*"')
_TAG = re.compile(r"<[^>]+>")
_COLOUR = re.compile(r"(?<=[:\s])#[0-9a-f]{6}\b")


def figures(details: Details) -> str:
    """Return every figure for which there are numbers."""
    from ablate.report.figures import drawings  # slow to import

    return "\n".join(map(_figure, drawings(details)))


def _figure(drawing: Drawing) -> str:
    numbers = base64.b64encode(drawing.csv().encode()).decode()
    title = escape(drawing.title)
    link = f'href="data:text/csv;charset=utf-8;base64,{numbers}" download="{drawing.name}.csv"'
    return f"""<figure>
<figcaption>{title} <a {link}>numbers (CSV)</a></figcaption>
<div class="wide" role="region" aria-label="{title}" tabindex="0">
{inline_svg(drawing)}
</div>
</figure>"""


def inline_svg(drawing: Drawing) -> str:
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
