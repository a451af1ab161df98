"""Tables in the layouts of Vaswani et al. 2017 and Narang et al. 2021."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from string import ascii_uppercase

import pytest

from ablate.analysis.summary import Summary
from ablate.config import Experiment, load
from ablate.config.choices import with_match
from ablate.errors import SpecError
from ablate.report import Table, render, tabulate
from ablate.report.layout import Layout
from tests.report import made_up
from tests.report.test_latex import CLASSES, compiled

STUDIES = Path(__file__).parents[2] / "experiments"
LAYOUTS: tuple[Layout, ...] = ("narang", "vaswani")
MIXED = """
  one: {model.dims.n_heads: 1}
  two: {model.dims.n_heads: 4}
  learned: {model.position: learned, model.dropout: {embedding: 0.2, residual: 0.2}}
"""


def laid_out(experiment: Experiment, layout: Layout) -> Table:
    records = made_up.records(experiment)
    if "one" in {row.name for row in experiment.rows}:
        for seed in experiment.seeds:
            records["one", seed]["test"]["test"]["bleu"] = 60.0 + seed / 10
            records["baseline", seed]["test"]["test"]["bleu"] = 40.0 + seed / 10
    return tabulate(experiment, records, layout=layout)


@pytest.fixture
def vaswani(tmp_path: Path) -> Table:
    return laid_out(made_up.experiment(tmp_path, MIXED), "vaswani")


@pytest.fixture
def narang(tmp_path: Path) -> Table:
    return laid_out(made_up.experiment(tmp_path, MIXED), "narang")


def test_rows_that_change_the_same_stand_together(vaswani: Table) -> None:
    assert [cell.value for cell in vaswani.column("row")] == ["base", "(A)", "", "(B)"]
    assert [line.begins_group for line in vaswani.lines] == [False, True, False, True]


def test_only_changed_cells_are_filled_in_the_paper_s_words(vaswani: Table) -> None:
    heads = {column.header: column.key for column in vaswani.columns}
    assert list(heads)[1:4] == ["h", "P_drop", "position"]  # both dropouts change as one
    assert [c.value for c in vaswani.column(heads["h"])] == ["2", "1", "4", ""]
    assert [c.value for c in vaswani.column(heads["P_drop"])][1:] == ["", "", "0.2"]
    assert [c.value for c in vaswani.column(heads["position"])][1:] == ["", "", "learned"]


def test_perplexities_are_those_of_dev_and_stand_beside_the_published(tmp_path: Path) -> None:
    published = "published: {source: them, rows: {baseline: {ppl: 4.92, bleu: 25.8}}}"
    table = laid_out(
        made_up.experiment(tmp_path, MIXED, head=made_up.HEAD + published + "\n"), "vaswani"
    )
    summary = table.lines[0].summary
    measured = {"dev.perplexity": 2, "test.test.bleu": 1}
    ppl, bleu = (f"{summary.metrics[key].mean:.{n}f}" for key, n in measured.items())
    first = {c.key: cell.value for c, cell in zip(table.columns, table.lines[0].cells, strict=True)}
    assert list(first.items())[-5:-1] == [
        ("dev.perplexity", ppl),
        ("published.ppl", "4.92"),
        ("test.test.bleu", bleu),
        ("published.bleu", "25.8"),
    ]


def test_letters_in_the_names_are_the_groups() -> None:
    whole = laid_out(load(STUDIES / "vaswani_table3.yaml"), "vaswani")
    names = [cell.value for cell in whole.column("row")]
    assert [name for name in names if name] == ["base", *(f"({c})" for c in "ABCDE"), "big"]
    assert sum(line.begins_group for line in whole.lines) == 6
    assert r"$d_{\mathrm{model}}$ &" in render(whole, "latex")  # a column for each path fits


def test_after_the_group_z_come_aa_and_ab(tmp_path: Path) -> None:
    paths = "training.steps", "model.feed_forward.d_ff"
    variants = "".join(f"\n  r{n}: {{{paths[n % 2]}: {40 + n}}}" for n in range(28))
    table = tabulate(made_up.experiment(tmp_path, variants), {}, layout="vaswani")
    names = [cell.value for cell in table.column("row")]
    assert names == ["base", *(f"({letter})" for letter in (*ascii_uppercase, "AA", "AB"))]


def test_scores_have_their_deviations_and_better_rows_a_mark(narang: Table) -> None:
    bleu = narang.column("test.test.bleu")
    assert [cell.mark for cell in bleu] == ["", "*", "", ""]
    summary: Summary = narang.lines[1].summary
    assert summary.metrics["test.test.bleu"].sd == pytest.approx(0.1)
    assert bleu[1].text == "60.2* (±0.1)"
    note = next(note.text for note in narang.footnotes if note.label == "layout")
    assert "* better than the baseline" in note


def _shifted(records: made_up.Records, metric: str, by: float) -> None:
    """Let a score of the row one differ from the baseline's by the same with every seed."""
    for (row, seed), record in records.items():
        shift = by if row == "one" else 0.0
        little = 0.001 * math.cos(len(row) + seed * math.tau / 3)
        record["test"]["test"][metric] = 30 + shift + little


@pytest.mark.parametrize(
    ("metric", "gain"), [("bleu", 0.5), ("chrf", 5.0), ("comet", 5.0), ("bits_per_character", -1.0)]
)
def test_a_mark_says_what_the_interval_does(metric: str, gain: float, tmp_path: Path) -> None:
    """Of measures that have no verdict, too, and of differences that are negligible."""
    head = f"metrics: [chrf, {{name: comet, model: weights.ckpt}}]\n{made_up.HEAD}"
    experiment = made_up.experiment(tmp_path, MIXED, head=head)
    records = made_up.records(experiment)
    for seed in experiment.seeds:
        records["two", seed]["tokenizer"] = {"fingerprint": "other", "n_src": 9, "n_tgt": 9}
    for by, mark in ((gain, "*"), (-gain, "")):
        _shifted(records, metric, by)
        laid_out = tabulate(experiment, records, layout="narang")
        assert laid_out.column(f"test.test.{metric}")[1].mark == mark


def test_a_signature_stands_under_the_columns_that_are_there(tmp_path: Path) -> None:
    for metrics, labels in (("[bleu]", set()), ("[chrf]", {"chrF"})):
        experiment = made_up.experiment(tmp_path, head=f"metrics: {metrics}\n{made_up.HEAD}")
        records = made_up.records(experiment)
        for layout in LAYOUTS:
            laid_out = tabulate(experiment, records, layout=layout)
            expected = labels if layout == "narang" else set()
            assert {note.label for note in laid_out.footnotes} & {"chrF"} == expected
            assert {column.header for column in laid_out.columns} & {"chrF"} == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_diverged_are_marked_and_named(layout: Layout, tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, MIXED)
    records = made_up.records(experiment)
    for run in (("two", 3), *(("learned", seed) for seed in experiment.seeds)):
        records[run] = made_up.without_result("diverged", "NaN", *run)
    laid_out = tabulate(experiment, records, layout=layout)
    assert [cell.mark for cell in laid_out.column("test.test.bleu")] == ["", "", "†§", "§"]
    text = next(note.text for note in laid_out.footnotes if note.label == "§")
    assert text.startswith("two (1 of 3 seeds), learned (all seeds): diverged; neither such a row")
    printed = re.sub(r"^%.*$", "", render(laid_out, "latex"), flags=re.MULTILINE)
    assert r"\S{} two (1 of 3 seeds), learned (all seeds): diverged" in printed
    assert r"$^\dagger$ not over all seeds" in printed


@pytest.mark.parametrize(("layout", "is_marked"), [("narang", True), ("vaswani", False)])
def test_what_a_row_had_more_of_is_explained_where_it_is_marked(
    layout: Layout, is_marked: bool, tmp_path: Path
) -> None:
    experiment = made_up.experiment(tmp_path, MIXED)
    records = made_up.records(experiment)
    for seed in experiment.seeds:
        records["two", seed]["flops"] = {"train_per_target_token": 2e6}
    laid_out = tabulate(experiment, records, layout=layout)
    text = next(note.text for note in laid_out.footnotes if note.label == "budget")
    assert text.startswith("equal steps and target tokens; training FLOPs 1.00 to 2.00")
    assert ("¶ marks" in text) == is_marked
    assert any(cell.mark == "¶" for line in laid_out.lines for cell in line.cells) == is_marked


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mark_of_verdicts_is_not_explained_where_no_verdict_stands(
    layout: Layout, tmp_path: Path
) -> None:
    experiment = made_up.experiment(tmp_path, MIXED)
    records = made_up.records(experiment)
    for seed in experiment.seeds:  # better, by less than is negligible
        records["learned", seed]["test"]["test"]["bleu"] = 40.9 + seed / 100
        records["one", seed]["test"]["test"]["bleu"] = 40.0 + seed / 9
        records["baseline", seed]["test"]["test"]["bleu"] = 40.0 + seed / 50
    ours, theirs = (tabulate(experiment, records, layout=each) for each in ("ours", layout))
    assert "°" in made_up.notes(ours)
    assert "°" not in made_up.notes(theirs)


def test_steps_per_second_follow_from_tokens(narang: Table) -> None:
    summary = narang.lines[2].summary
    speed = summary.speeds["speed.train_target_tokens_per_second"].value
    steps = speed * 10 / summary.metrics["train.target_tokens"].mean
    assert narang.column("speed.train_target_tokens_per_second")[2].value == f"{steps:.2f}"
    titles = [column.title for column in narang.columns]
    assert titles[:5] == ["model", "params M", "ops G", "step/s", "loss final, dev"]


def test_values_that_are_chosen_say_so_and_those_to_be_chosen_are_unknown(tmp_path: Path) -> None:
    path = "model.feed_forward.d_ff"
    head = f"match: {{on: time, via: {path}}}\n{made_up.HEAD}"
    experiment = made_up.experiment(tmp_path, MIXED, head=head)
    matched = with_match(experiment, {"one": 40, "two": None})
    both = [tabulate(matched, {}, layout=layout).column(path) for layout in ("ours", "vaswani")]
    assert [cell.text for cell in both[1]] == ["32", "40 (matched)", "?", ""]
    assert both[0] == both[1]


def test_a_rule_stands_above_each_group(vaswani: Table) -> None:
    lines = render(vaswani, "terminal").splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("(B)"))
    assert set(lines[at - 1]) == {"─"}
    body = render(vaswani, "latex").partition("(A)")[2]
    assert "\\midrule\n(B)" in body
    assert r"$P_{\mathrm{drop}}$" in render(vaswani, "latex")


@pytest.mark.parametrize(
    ("form", "columns"),
    [("html", None), ("csv", None), ("csv", ["all"]), ("by-seed", None), ("json", None)],
)
def test_formats_for_programs_have_no_other_layout(
    form: str, columns: list[str] | None, narang: Table
) -> None:
    with pytest.raises(SpecError, match="has a layout of its own; remove --layout"):
        render(narang, form, columns=columns)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
@pytest.mark.parametrize("class_", CLASSES)
def test_nothing_is_overfull_in_stock_classes(class_: str, tmp_path: Path) -> None:
    layouts: tuple[Layout, ...] = ("vaswani", "narang")
    tables = "\n".join(
        render(laid_out(load(STUDIES / f"{name}.yaml"), layout), "latex") + r"\clearpage"
        for name in ("vaswani_table3", "narang", "pe")
        for layout in layouts
    )
    assert re.findall(r"Overfull \\hbox.*", compiled(tables, class_, tmp_path)) == []
