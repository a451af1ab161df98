r"""The table for a paper: booktabs, and nothing else that LaTeX does not have.

Needs ``\usepackage{booktabs}``, and a document in UTF-8.
"""

from __future__ import annotations

import re

from ablate.report.cells import NOTHING, Cell, Table
from ablate.report.numbers import MINUS, TIMES
from ablate.report.table_format import TableFormat

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
    "‡": r"$^\ddagger$",
    "§": r"\S{}",
    "¶": r"\P{}",
    "∞": r"$\infty$",
    NOTHING: "--",
    "·": r"$\cdot$",
    "…": r"\dots{}",
}
_FIRST_COST = 3  # rank: from here on columns go below the others


class Latex(TableFormat):
    """A table of the package booktabs."""

    name = "latex"
    file_name = "table.tex"

    def text(self, table: Table) -> str:
        return latex(table)


def latex(table: Table) -> str:
    """Write ``table`` as a float with a caption, a label, its footnotes and its conclusion.

    It is as wide as the page; what the rows cost stands below how well they translate, and other
    test sets below that.
    """
    label = re.sub("[^A-Za-z0-9]+", "-", table.name).strip("-")
    blocks = [part for block in table.blocks for part in _halves(block)]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table*}[t]",
            r"\centering",
            r"\footnotesize\setlength{\tabcolsep}{3pt}",
            f"\\caption{{{escaped(table.question or table.name)}}}",
            f"\\label{{tab:{label}}}",
            *(line for block in blocks for line in (*_tabular(block), "", r"\vspace{1ex}")),
            r"\begin{minipage}{\linewidth}\raggedright\scriptsize",
            *(f"\\textit{{{escaped(n.label)}}}: {escaped(n.text)}\\par" for n in table.footnotes),
            *([f"\\textbf{{{escaped(table.conclusion)}}}\\par"] if table.conclusion else []),
            r"\end{minipage}",
            r"\end{table*}",
            "",
        ]
    )


def _halves(table: Table) -> list[Table]:
    """Return the columns that a row is judged by, and those of what it costs, if there are any."""
    high = [at for at, column in enumerate(table.columns) if column.rank >= _FIRST_COST]
    low = [at for at in range(len(table.columns)) if at not in high]
    return [table.only(low), table.only([0, *high])] if high else [table]


def escaped(text: str) -> str:
    """Return ``text`` so that LaTeX prints it as it is; signs it lacks become formulas."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _tabular(table: Table) -> list[str]:
    columns = "".join("r" if column.is_number else "l" for column in table.columns)
    baseline, *variants = [_row([_cell(cell) for cell in line.cells]) for line in table.lines]
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
