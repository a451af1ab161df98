"""The table for a paper: it fits the text of stock classes, and its numbers are aligned."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ablate.config import Experiment
from ablate.errors import SpecError
from ablate.report import Table, render, tabulate
from ablate.report.values import MINUS
from tests.report import made_up

CLASSES = {"article": "", "two columns": "[twocolumn]", "letters": "[11pt,a4paper]"}
CHARACTER, GAP, TEXT_WIDTH = 4.25, 6.0, 345.0  # points, of 8 point digits; of article
NUMBER = re.compile(rf"[+{MINUS}]?\d+\.\d+")


def grids(text: str) -> list[tuple[str, list[list[str]]]]:
    """Return the specification of every grid, and its cells."""
    actual = re.findall(
        r"\\begin\{tabularx\}\{\\linewidth\}\{@\{\}([^\n]*)@\{\}\}\n(.*?)\\end\{tabularx\}",
        text,
        flags=re.DOTALL,
    )
    rows = [re.findall(r"^(.*) \\\\$", body, flags=re.MULTILINE) for _, body in actual]
    return [
        (spec, [re.split(r" (?<!\\)& ", row) for row in of_grid])
        for (spec, _), of_grid in zip(actual, rows, strict=True)
    ]


def n_columns(spec: str) -> int:
    bare = re.sub(r"[@>]\{(?:[^{}]|\{[^{}]*\})*\}", "", spec)
    assert set(bare) <= set("Xlr"), bare
    return len(bare)


def spans(row: list[str]) -> int:
    return sum(2 if cell.startswith(r"\multicolumn{2}") else 1 for cell in row)


@pytest.mark.parametrize("columns", [None, ["all"], ["params", "verdict"]])
def test_groups_and_columns_agree(
    columns: list[str] | None, whole: Table, broken: Table, many: Table
) -> None:
    for each in (whole, broken, many):
        text = render(each, "latex", columns=columns)
        opened = re.findall(r"\\begin\{([a-z*]+)\}", text)
        assert sorted(opened) == sorted(re.findall(r"\\end\{([a-z*]+)\}", text))
        plain = text.replace(r"\{", "").replace(r"\}", "")
        assert plain.count("{") == plain.count("}")
        assert grids(text)
        for spec, rows in grids(text):
            assert len(rows) == len(each.lines) + 2
            assert {spans(row) for row in rows} == {n_columns(spec)}


def test_every_row_has_all_its_numbers_in_their_order(whole: Table) -> None:
    text = render(whole, "latex", columns=["all"]).replace("$-$", MINUS)
    of_rows = [[" ".join(row) for row in rows[2:]] for _, rows in grids(text)]
    for at, name in enumerate(line.summary.name for line in whole.lines):
        cells = [cell.text for block in whole.blocks for cell in block.lines[at].cells]
        printed = [grid[at] for grid in of_rows]
        assert all(row.replace("\\_", "_").startswith(name) for row in printed)
        assert NUMBER.findall(" ".join(printed)) == NUMBER.findall(" ".join(cells))


def test_a_paper_gets_few_columns_and_the_file_all_remarks(whole: Table) -> None:
    text = render(whole, "latex")
    ((_, rows),) = grids(text)
    heads = " ".join(rows[0])
    bleu = rows[0].index("BLEU")
    assert [row[bleu] for row in rows[1:]] == ["test", *made_up.texts(whole, "test.test.bleu")]
    for header in ("position", "n\\_", "BLEU", r"$\Delta$BLEU", r"95\% CI", "params"):
        assert header in heads or header in text
    assert "memory" not in heads
    printed = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    assert "hardware" not in printed
    assert "% hardware: cpu, Abacus 9" in text
    assert "nrefs:1" in printed
    assert "seeds: 1, 2, 3" in printed
    assert len(printed.partition("{minipage}")[2]) < 400


def test_a_paper_says_which_values_were_tuned(
    experiment: Experiment, records: made_up.Records
) -> None:
    lr = "training.schedule.lr"
    rows = tuple(
        replace(row, changes={**row.changes, lr: 0.02}, chosen={lr: "tuned"})
        for row in experiment.rows
    )
    text = render(tabulate(replace(experiment, rows=rows), records), "latex")
    lines = [line.replace(r"\allowbreak{}", "") for line in text.splitlines()]
    tuned = [line for line in lines if "(tuned)" in line]
    assert len(tuned) == len(rows)
    assert all("lr=0.02 (tuned)" in line for line in tuned[1:])


def test_an_error_in_several_lines_stays_in_its_comment(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path)
    records = made_up.records(experiment)
    records["learned", 2] = made_up.without_result("failed", "boom\nbang", "learned", 2)
    lines = render(tabulate(experiment, records), "latex").splitlines()
    assert "% learned, seed 2: failed: boom bang" in lines
    assert all(line.startswith("%") for line in lines[: lines.index(r"\begin{table*}[t]")])


def test_letters_that_need_another_engine_are_named(whole: Table) -> None:
    assert "LuaLaTeX" not in render(whole, "latex")
    text = render(replace(whole, question="هل нет 無?"), "latex")
    (line,) = (line for line in text.splitlines() if "LuaLaTeX" in line)
    assert line.startswith(
        "% has letters that pdfLaTeX lacks (ARABIC, CJK, CYRILLIC): use LuaLaTeX"
    )
    assert r"\caption{هل нет 無?" in text


def test_signs_of_no_script_are_formulas_or_named(whole: Table) -> None:
    text = render(replace(whole, question="Is 1 ≤ 2 ≈ 2 ≥ 1 🚀?"), "latex")
    assert r"Is 1 $\leq$ 2 $\approx$ 2 $\geq$ 1 🚀?" in text
    (line,) = (line for line in text.splitlines() if "fontspec" in line)
    assert line.startswith("% has signs that LaTeX's fonts lack (🚀): use LuaLaTeX")
    assert "fontspec" not in render(whole, "latex")
    quoted = "Is \u201ca\u201d \u2014 or isn\u2019t it \u2018b\u2019?"
    assert "LuaLaTeX" not in render(replace(whole, question=quoted), "latex")


def test_a_backtick_is_no_quotation_mark(whole: Table) -> None:
    text = render(replace(whole, question="Does `pre` help?"), "latex")
    assert r"Does \textasciigrave{}pre\textasciigrave{} help?" in text


def test_many_rows_go_to_several_pages(tmp_path: Path) -> None:
    rows = "\n".join(f"  row{i}: {{model.feed_forward.d_ff: {i}}}" for i in range(100, 180))
    experiment = made_up.experiment(tmp_path, f"\n{rows}")
    text = render(tabulate(experiment, made_up.records(experiment)), "latex")
    names = [row[0] for _, of_page in grids(text) for row in of_page[2:]]
    assert names.count("baseline") == text.count(r"\begin{table*}") == 3
    assert [name for name in names if name != "baseline"] == [f"row{i}" for i in range(100, 180)]
    assert max(len(of_page) for _, of_page in grids(text)) == 2 + 40
    assert text.count(r"\caption{Continued.}") == text.count(r"\addtocounter{table}{-1}") == 2
    assert text.count(r"\label") == text.count(r"\begin{minipage}") == 1


def test_marks_of_the_table_are_explained_and_take_no_room(broken: Table) -> None:
    printed = re.sub(r"^%.*$", "", render(broken, "latex"), flags=re.MULTILINE)
    assert r"\rlap{$^\dagger$}" in printed
    assert re.search(r"^.*\$\^\\dagger\$ not over all seeds", printed, re.MULTILINE)
    assert r"\rlap{\S{}}" in printed
    assert r"\S{} learned: a row with diverged seeds has no interval" in printed


def test_every_mark_of_a_number_is_printed(whole: Table) -> None:
    numbers = [at for at, column in enumerate(whole.columns) if column.is_number]
    lines = [
        replace(line, cells=tuple(replace(cell, mark="‡") for cell in line.cells))
        for line in whole.only(numbers).lines
    ]
    marked = replace(whole.only(numbers), lines=tuple(lines), more=None)
    text = render(marked, "latex", columns=["all"])
    assert text.count(r"\rlap{$^\ddagger$}") == len(numbers) * len(lines)


def test_columns_are_chosen_by_their_headers(whole: Table) -> None:
    text = render(whole, "markdown", columns=["memory", "bleu_test_long", "verdict"])
    head = next(line for line in text.splitlines() if line.startswith("|"))
    titles = [cell.strip() for cell in head.strip("|").split("|")]
    nonempty = [title for title in titles if title]
    assert nonempty == ["position", "n_heads", "verdict ±1 BLEU", "memory MiB", "BLEU test_long"]
    with pytest.raises(SpecError, match="no column is called 'memroy'; did you mean 'memory_mib'"):
        render(whole, "markdown", columns=["memroy"])
    for names in (["all", "bleu"], ["memory", "all"]):
        with pytest.raises(SpecError, match=f"columns {','.join(names)}: 'all' stands alone"):
            render(whole, "markdown", columns=names)
    with pytest.raises(SpecError, match="'compact' stands alone; remove the others"):
        render(whole, "latex", columns=["compact", "verdict"])


@pytest.mark.parametrize("columns", [None, ["all"]])
def test_what_is_not_broken_into_lines_leaves_room_for_the_texts(
    columns: list[str] | None, whole: Table, many: Table
) -> None:
    """An estimate from above: every character as wide as a digit, marks and formulas as one."""
    for each in (whole, many):
        for spec, rows in grids(render(each, "latex", columns=columns)):
            kinds = re.findall(r"[Xlr]", re.sub(r"[@>]\{(?:[^{}]|\{[^{}]*\})*\}", "", spec))
            width = 0.0
            for at, kind in enumerate(kinds):
                cells = [row[at] for row in rows[2:] if spans(row) == len(row)]
                plain = [re.sub(r"\\[a-z]+(\{\})?|[${}^]", "", cell) for cell in cells]
                width += GAP + (80 if kind == "X" else CHARACTER * max(map(len, plain), default=0))
            assert width <= TEXT_WIDTH + 60, spec  # an interval's two ends share one gap


def compiled(tables: str, class_: str, folder: Path) -> str:
    """Compile tables in a document of a stock class; return what LaTeX says."""
    (folder / "x.tex").write_text(
        f"\\documentclass{CLASSES[class_]}{{article}}\\usepackage{{booktabs,tabularx}}\n"
        f"\\begin{{document}}\n{tables}\n\\end{{document}}\n",
        encoding="utf-8",
    )
    process = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert process.returncode == 0, process.stdout[-2000:]
    return process.stdout


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
@pytest.mark.parametrize("class_", CLASSES)
@pytest.mark.parametrize("columns", [None, ["all"]])
def test_nothing_is_overfull_in_stock_classes(
    class_: str, columns: list[str] | None, many: Table, broken: Table, tmp_path: Path
) -> None:
    tables = "\n".join(render(each, "latex", columns=columns) for each in (many, broken))
    assert re.findall(r"Overfull \\hbox.*", compiled(tables, class_, tmp_path)) == []


@pytest.mark.parametrize(
    ("question", "start"),
    [
        ("Positions", "Positions. By BLEU"),
        ("Positions (all)\n", "Positions (all). By BLEU"),
        ("Do positions matter?", "Do positions matter? By BLEU"),
        (None, r"made\_up. By BLEU"),
    ],
)
def test_the_caption_is_made_of_sentences(whole: Table, question: str | None, start: str) -> None:
    text = render(replace(whole, name="made_up", question=question), "latex")
    assert rf"\caption{{{start}" in text


@pytest.mark.parametrize(("seeds", "has_intervals"), [("[1]", False), ("[1, 2]", True)])
def test_a_changed_list_is_no_interval_and_lines_break_after_signs_but_in_no_number(
    tmp_path: Path, seeds: str, has_intervals: bool
) -> None:
    variants = "\n  lr=0.005 a.b and a longer name: {training.optimizer.betas: [0.9, 0.97]}\n"
    experiment = made_up.experiment(tmp_path, variants, seeds)
    text = render(tabulate(experiment, made_up.records(experiment)), "latex")
    assert r"lr=\allowbreak{}0.005 a.\allowbreak{}b" in text
    assert "[0.9, 0.97]" in text
    assert ("the intervals of all rows hold together" in text) == has_intervals
