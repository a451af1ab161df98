r"""The table for a paper: booktabs and tabularx, which every distribution of LaTeX has.

Needs ``\usepackage{booktabs,tabularx}``, and a document in UTF-8.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

from ablate.report.columns import BEYOND
from ablate.report.formats import TableFormat
from ablate.report.table import COMPACT, Cell, Footnote, Table, joined_changes, with_intervals
from ablate.report.values import MINUS, NOTHING, TIMES, measure_name

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
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    MINUS: r"$-$",
    TIMES: r"$\times$",
    "Δ": r"$\Delta$",
    "→": r"$\to$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "τ": r"$\tau$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "§": r"\S{}",
    "¶": r"\P{}",
    "°": r"$^\circ$",
    "∞": r"$\infty$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    NOTHING: "--",
    "·": r"$\cdot$",
    "…": r"\dots{}",
    "ε": r"$\epsilon$",
}
_SYMBOLS = {
    "d_model": r"$d_{\mathrm{model}}$",
    "d_ff": r"$d_{\mathrm{ff}}$",
    "d_k": "$d_k$",
    "d_v": "$d_v$",
    "P_drop": r"$P_{\mathrm{drop}}$",
    "ε_ls": r"$\epsilon_{\mathrm{ls}}$",
}
_MARKS = ("†", "‡", "§", "¶", "°")
# labels of the footnotes that are printed, besides the marks and the signatures of columns; the
# others are comments in the file
_SHORT = ("trial", "seeds added", "layout", "looks", "seed", "seeds", "BLEU", "published")
_OF_CONTEXTS = ("contexts", "Δ", "mean", "trend")  # which explain the columns and their signs
_TEXT_WIDTH = 345.0  # points: article in one column, the narrowest of the stock classes
_DIGIT = 4.25  # points: the width of a digit of Computer Modern in \footnotesize, 8 points
_GAP = 6.0  # points between two columns
_NARROWEST = 85.0  # points that a column of texts is to have at least
_LONG_NAME = 18  # characters of a row's name, from which on it is broken into lines
_LONG_VALUE = 12  # likewise of a value, where each changed path has a column
_SIZE = r"\footnotesize\setlength{\tabcolsep}{3pt}"
_SIZE_OF_PAPER = r"\scriptsize\setlength{\tabcolsep}{2pt}"
_SMALLER = 0.85  # what the latter takes of the former's width
_MOST_ROWS = 40  # on a page
_LATIN_1 = 0xFF
_TYPOGRAPHIC = set("\u2014\u2018\u2019\u201c\u201d")  # a dash and quotes, which LaTeX has
_INTERVAL = re.compile(r"\[(.*), (.*)\]")


class Latex(TableFormat):
    """A float of booktabs and tabularx with a caption, a label and short notes.

    It is as wide as the text, in one column or across two: names and changes are broken into lines
    where that takes it. Many rows go to several pages. What a reader of the file needs, and one of
    the paper does not, are comments.
    """

    name = "latex"
    suffix = ".tex"
    default_columns = COMPACT
    file_name = "table.tex"

    def text(self, table: Table) -> str:
        label = re.sub("[^A-Za-z0-9]+", "-", table.name).strip("-")
        widths = [
            _NARROWEST if _kind(table, at) == "broken" else _width(table, at)
            for at in range(len(table.columns))
        ]
        is_of_paper = table.is_of_paper and _SMALLER * sum(widths) <= _TEXT_WIDTH
        most = len(table.columns) if is_of_paper else 1
        joined = [joined_changes(block, most) for block in table.blocks]
        blocks = joined if is_of_paper else [part for block in joined for part in _fitting(block)]
        printed, comments = _notes(table)
        question = (table.question or table.name).rstrip()
        if question[-1:].isalnum() or question.endswith((")", "]")):  # the conclusion follows
            question += "."
        caption = f"{_escaped(question)} {_escaped(table.conclusion)}".strip()
        first, *others = (
            [line for block in of_page for line in (*_tabular(block), "", r"\vspace{1ex}")]
            for of_page in _pages(blocks)
        )
        begin = [r"\begin{table*}[t]", r"\centering", _SIZE_OF_PAPER if is_of_paper else _SIZE]
        parts = [*begin, f"\\caption{{{caption}}}", f"\\label{{tab:{label}}}", *first]
        for of_page in others:
            again = [r"\addtocounter{table}{-1}", r"\caption{Continued.}"]
            parts += [r"\end{table*}", *begin, *again, *of_page]
        notes = [r"\begin{minipage}{\linewidth}\raggedright\scriptsize", " ".join(printed)]
        lines = "\n".join([*parts, *notes, r"\end{minipage}", r"\end{table*}", ""])
        remarks = [" ".join(f"{note.label}: {note.text}".split()) for note in comments]
        header = [r"needs \usepackage{booktabs,tabularx}", *_needed_for_letters(lines), *remarks]
        return "".join(f"% {line}\n" for line in header) + lines


def _needed_for_letters(text: str) -> list[str]:
    """Return what LaTeX needs for letters and signs that are not Latin; nothing without any."""
    names = (unicodedata.name(letter, "LATIN") for letter in text if letter.isalpha())
    scripts = sorted({name.partition(" ")[0] for name in names} - {"LATIN", "MICRO"})
    others = {sign for sign in text if ord(sign) > _LATIN_1 and not sign.isalpha()}
    signs = sorted(others - _TYPOGRAPHIC)
    lines = []
    if scripts:
        lines.append(
            f"has letters that pdfLaTeX lacks ({', '.join(scripts)}): use LuaLaTeX with "
            r"\usepackage[bidi=basic]{babel}, and \babelprovide[import, onchar=ids fonts] and "
            r"\babelfont of each"
        )
    if signs:
        lines.append(
            f"has signs that LaTeX's fonts lack ({' '.join(signs)}): use LuaLaTeX with fontspec "
            "and a font that has them"
        )
    return lines


def _fitting(table: Table) -> list[Table]:
    """Return the columns in grids that fit the text, estimated from above, with the rows' names."""
    texts = [at for at, column in enumerate(table.columns) if column.kind in ("row", "change")]
    grids, room = [texts], _TEXT_WIDTH - _NARROWEST * len(texts)
    numbers = [at for at in range(len(table.columns)) if at not in texts]
    for pair in with_intervals(table, numbers):
        width = sum(_width(table, at) for at in pair)
        if width > room and len(grids[-1]) > 1:
            grids.append(texts[:1])
            room = _TEXT_WIDTH - _NARROWEST
        grids[-1] = [*grids[-1], *pair]
        room -= width
    return [table.only(sorted(grid)) for grid in grids]


def _pages(blocks: list[Table]) -> list[list[Table]]:
    """Return grids that fit one page each; each part of a long one begins with the baseline."""
    pages: list[list[Table]] = [[]]
    for block in blocks:
        baseline, *rows = block.lines
        for at in range(0, max(1, len(rows)), _MOST_ROWS - 1):
            part = replace(block, lines=(baseline, *rows[at : at + _MOST_ROWS - 1]))
            if sum(len(each.lines) for each in pages[-1]) + len(part.lines) > _MOST_ROWS:
                pages.append([])
            pages[-1].append(part)
    return [page for page in pages if page]


def _width(table: Table, at: int) -> float:
    column = table.columns[at]
    cells = [line.cells[at].text for line in table.lines]
    header = column.header[2:] if column.header in _SYMBOLS else column.header  # an index is small
    longest = max(map(len, [header, column.detail, *cells]))
    return longest * _DIGIT + _GAP


def _notes(table: Table) -> tuple[list[str], list[Footnote]]:
    cells = [cell for block in table.blocks for line in block.lines for cell in line.cells]
    headers = {column.header for block in table.blocks for column in block.columns}
    signatures = table.results.signatures if table.results else {}
    signed = {measure_name(metric) for metric in signatures} & headers
    marks = {mark for cell in cells for mark in cell.mark}
    printed_labels = {*_SHORT, *_OF_CONTEXTS, *signed, *marks}
    is_printed = {  # the label of some contexts is a list, as in `narrow, §`
        note: bool(printed_labels & {*note.label.split(", ")})
        or (BEYOND in marks and BEYOND in note.text)
        for note in table.footnotes
    }
    printed = [_note(note) for note in table.footnotes if is_printed[note]]
    if any(_has_intervals(block, at) for block in table.blocks for at in range(len(block.columns))):
        printed.insert(0, r"95\% CI: the intervals of all rows hold together.")
    return printed, [note for note in table.footnotes if not is_printed[note]]


def _note(note: Footnote) -> str:
    """Return a note whose lines may break after the signs that join the parts of a signature."""
    end = "" if note.text.endswith(".") else "."
    colon = "" if note.label in _MARKS else ":"
    text = _escaped(note.text).replace(r"\textbar{}", r"\textbar{}\allowbreak{}")
    return f"{_escaped(note.label)}{colon} {text}{end}"


def _escaped(text: str) -> str:
    """Return ``text`` so that LaTeX prints it as it is; signs it lacks become formulas."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _tabular(table: Table) -> list[str]:
    """Return a grid of the width of the text; numbers stand with their points below one another."""
    specifications = {
        "interval": r"r@{, }r",
        "aside": r"r@{\,}l",
        "number": "r",
        "text": "l",
        "broken": r">{\raggedright\arraybackslash\hangindent=1em}X",  # texts share what is left
    }
    kinds = [_kind(table, at) for at in range(len(table.columns))]
    set_as = kinds if "broken" in kinds else ["broken", *kinds[1:]]
    specification = "".join(specifications[kind] for kind in set_as)
    baseline, *variants = [
        "\\midrule\n" * (line.begins_group and at > 1) + _row(list(map(_cell, kinds, line.cells)))
        for at, line in enumerate(table.lines)
    ]
    return [
        f"\\begin{{tabularx}}{{\\linewidth}}{{@{{}}{specification}@{{}}}}",
        r"\toprule",
        _row([_head(table, at, column.header) for at, column in enumerate(table.columns)]),
        _row([_head(table, at, column.detail) for at, column in enumerate(table.columns)]),
        r"\midrule",
        baseline,
        *([r"\midrule"] if variants else []),
        *variants,
        r"\bottomrule",
        r"\end{tabularx}",
    ]


def _kind(table: Table, at: int) -> str:
    column, cells = table.columns[at], [line.cells[at] for line in table.lines]
    if column.kind == "row":
        return "broken" if max(len(cell.text) for cell in cells) > _LONG_NAME else "text"
    if column.kind == "change":
        longest = max(len(cell.text) for cell in cells)
        return "text" if table.is_of_paper and longest <= _LONG_VALUE else "broken"
    if column.kind == "verdict":
        return "text"
    if _has_intervals(table, at):
        return "interval"
    return "aside" if any(cell.aside for cell in cells) else "number"


def _has_intervals(table: Table, at: int) -> bool:
    """Return whether a column is one of intervals; a list that a row changes looks like one."""
    cells = [line.cells[at].value for line in table.lines]
    return table.columns[at].is_number and any(map(_INTERVAL.fullmatch, cells))


def _head(table: Table, at: int, text: str) -> str:
    kind, written = _kind(table, at), _SYMBOLS.get(text, _escaped(text))
    return f"\\multicolumn{{2}}{{c}}{{{written}}}" if kind in ("interval", "aside") else written


def _row(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _cell(kind: str, cell: Cell) -> str:
    mark = f"\\rlap{{{_escaped(cell.mark)}}}" if cell.mark else ""
    if kind == "interval":
        ends = _INTERVAL.fullmatch(cell.value)
        if ends is None:
            return f"\\multicolumn{{2}}{{c}}{{{_escaped(cell.value)}{mark}}}"
        low, high = (_escaped(end) for end in ends.groups())
        return f"{{[{low}}} & {high}]{mark}"
    if kind == "aside":
        aside = _escaped(f"({cell.aside})") if cell.aside else ""
        return f"{_escaped(cell.value)}{mark} & {aside}"
    # at the beginning of a row these would be read as an argument of the line above
    text = _escaped(cell.value if kind == "number" else cell.text)
    if kind == "broken":  # after the signs inside of names and choices, not inside of a number
        text = re.sub(r"(\\_|=|\(|\.(?!\d)|/)(?=[^ ])", r"\1\\allowbreak{}", text)
    text = f"{{{text}}}" if text.startswith(("[", "*")) else text
    return f"{text}{mark}" if kind == "number" else text
