r"""The table for a paper: booktabs, and nothing else that LaTeX does not have.

Needs ``\usepackage{booktabs}``, and a document in UTF-8.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ablate.report.cells import NOTHING, Cell, Table
from ablate.report.numbers import MINUS, TIMES

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "±": r"$\pm$",
    MINUS: r"$-$",
    TIMES: r"$\times$",
    "Δ": r"$\Delta$",
    "→": r"$\to$",
    "†": r"$^\dagger$",
    "∞": r"$\infty$",
    NOTHING: "--",
    "·": r"$\cdot$",
    "…": r"\dots{}",
}
_MOST_COLUMNS = 9  # of a narrow table; a wide one reaches across both columns of the page
_DETAIL_RANK = 8  # from here on a column is not for a page


def latex(table: Table) -> str:
    """Write ``table`` as a floating table with a caption, a label and its footnotes.

    One that is wide is set smaller and leaves out comparisons in brackets and the last details,
    which a comment in the file names.
    """
    is_wide = len(table.columns) > _MOST_COLUMNS
    left_out = [c.title for c in table.columns if c.rank >= _DETAIL_RANK] if is_wide else []
    shown = table.only([at for at, c in enumerate(table.columns) if c.title not in left_out])
    environment = "table*" if is_wide else "table"
    label = re.sub("[^A-Za-z0-9]+", "-", table.name).strip("-")
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            *([f"% left out for want of room: {', '.join(left_out)}"] if left_out else []),
            f"\\begin{{{environment}}}[t]",
            r"\centering",
            r"\footnotesize\setlength{\tabcolsep}{3pt}" if is_wide else r"\small",
            f"\\caption{{{escaped(table.question or table.name)}}}",
            f"\\label{{tab:{label}}}",
            *_tabular(shown, has_asides=not is_wide),
            "",
            r"\vspace{0.5ex}",
            r"\begin{minipage}{\linewidth}\raggedright\scriptsize",
            *(f"\\textit{{{escaped(n.label)}}}: {escaped(n.text)}\\par" for n in table.footnotes),
            r"\end{minipage}",
            f"\\end{{{environment}}}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Return ``text`` so that LaTeX prints it as it is; signs it lacks become formulas."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _tabular(table: Table, *, has_asides: bool) -> list[str]:
    columns = "".join("r" if column.is_number else "l" for column in table.columns)
    baseline, *variants = [
        _row([_cell(cell if has_asides else replace(cell, aside="")) for cell in line.cells])
        for line in table.lines
    ]
    return [
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _row([escaped(column.header) for column in table.columns]),
        _row([escaped(column.detail) for column in table.columns]),
        r"\midrule",
        baseline,
        *([r"\midrule"] if variants else []),
        *variants,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _row(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _cell(cell: Cell) -> str:
    # at the beginning of a row these would be read as an argument of the line above
    text = escaped(cell.text)
    return f"{{{text}}}" if text.startswith(("[", "*")) else text
