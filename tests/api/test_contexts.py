"""Experiments with contexts: a command in each, and the overview of all."""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ablate
from ablate import api
from ablate.analysis.contexts import OverContexts, Slope, over_contexts
from ablate.analysis.measures import Verdict
from ablate.analysis.statistics import Estimate, Interval
from ablate.api.report import joined
from ablate.cli.app import app
from ablate.errors import DetachedError, SpecError, StoreError
from ablate.report import contexts as module
from ablate.report import render, write_tables
from ablate.report.contexts import conclusion, metric_of, tabulate, verdict_over
from ablate.report.figures import draw_contexts
from ablate.report.layout import Layout
from ablate.report.looks import Looks
from ablate.report.table import Contexts, Footnote, Table
from ablate.report.values import MINUS, NOTHING, interval_text, number, row_names, signed
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.task import TaskGroup
from ablate.store import Store
from tests.documents import assert_described
from tests.made_up_runs import BASE, finish
from tests.report import made_up

CONTEXTS = """\
contexts:
  narrow: {}
  middle: {model.dims.d_model: 32}
  wide: {model.dims.d_model: 64}
trend: model.dims.d_model
"""
TEXT = f"""\
{BASE.replace("seeds: [1, 2]", "seeds: [1, 2, 3]")}{CONTEXTS}negligible: {{bleu: 2}}
variants: {{none: {{model.position: none}}, rms: {{model.norm: rms}}}}
"""
NAMES = ["narrow", "middle", "wide"]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an experiment with made-up runs of every context in ``results`` beside it."""
    return finished(tmp_path_factory.mktemp("study"), with_files="narrow")


def finished(folder: Path, text: str = TEXT, with_files: str = "") -> Path:
    path = folder / "size.yaml"
    path.write_text(text, encoding="utf-8")
    for name, each in api.contexts_of(path).items():
        finish(each, folder / "results", place=f"{name} ", has_files=name == with_files)
    return path


def end(folder: Path, row: str, status: str, seeds: Sequence[int], context: str = "middle") -> None:
    """Let runs of a row end without a result in a context."""
    for path in folder.glob("results/runs/*/record.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        known = record["experiment"].endswith(context), record["variant"], record["seed"]
        if known in {(True, row, seed) for seed in seeds}:
            bare = {k: v for k, v in record.items() if k not in ("digest", "test", "dev")}
            Store(folder / "results").save({**bare, "status": status, "error": "lost"})


def reported(spec: Path, **options: Any) -> api.Outcome:
    return api.report(spec, results=spec.parent / "results", **options)


def overview(spec: Path) -> tuple[Table, Contexts]:
    table = reported(spec).table
    assert table.contexts is not None
    return table, table.contexts


def call(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="ablate")
    return done.exit_code, done.stdout


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_overview_has_the_differences_of_every_context(spec: Path) -> None:
    table, contexts = overview(spec)
    assert [*contexts.tables] == NAMES
    assert contexts.sizes == {"narrow": 16, "middle": 32, "wide": 64}
    for name in NAMES:
        alone = reported(spec.with_name(f"size.yaml#{name}")).table
        cells = [cell.value for cell in alone.column("test.test.bleu.difference")]
        means = [cell.value for cell in alone.column("test.test.bleu")]
        assert [cell.value for cell in table.column(f"{name}.bleu.difference")] == [
            means[0],
            *cells[1:],
        ]
        ends = [cell.value for cell in alone.column("test.test.bleu.difference.interval")]
        assert [cell.value for cell in table.column(f"{name}.bleu.difference.interval")][1:] == (
            ends[1:]
        )


@pytest.mark.parametrize("layout", ["ours", "vaswani"])
def test_some_of_the_seeds_are_a_trial_in_every_layout(spec: Path, layout: Layout) -> None:
    table = reported(spec, seeds=[1, 2], layout=layout).table
    assert table.trial == ("seeds 1, 2 in place of 1, 2, 3",)
    assert table.footnotes[0].label == "trial"
    assert table.footnotes[0].is_vital


def test_all_contexts_together_are_the_mean_of_their_differences(spec: Path) -> None:
    _, contexts = overview(spec)
    for kind in ("bleu", "nll"):
        for row in ("none", "rms"):
            differences = [
                table.results.difference(row, metric_of(kind, table.results))
                for table in contexts.tables.values()
                if table.results
            ]
            estimates = [each.estimate for each in differences if each]
            over = contexts.over[kind][row]
            assert over == over_contexts(differences, 2, [16, 32, 64])  # two rows hold together
            assert over.mean == pytest.approx(np.mean(estimates))  # type: ignore[arg-type]
            assert over.trend is not None
            slope = np.polyfit([4, 5, 6], estimates, 1)[0]  # type: ignore[arg-type]
            assert over.trend.estimate == pytest.approx(slope)


def test_the_cells_of_all_contexts_are_written_as_those_of_one(spec: Path) -> None:
    table, contexts = overview(spec)
    for at, row in enumerate(("none", "rms"), start=1):
        over = contexts.over["bleu"][row]
        assert over.trend is not None
        assert over.tau is not None
        expected = {
            "mean": signed(over.mean, 1),
            "here": interval_text(over.here, 1),
            "interval": interval_text(over.interval, 1),
            "trend": signed(over.trend.estimate, 1),
            "trend.interval": interval_text(over.trend.interval, 1),
            "prediction": interval_text(over.prediction, 1),
            "tau": number(over.tau, 1),
        }
        cells = {key: table.column(f"over.bleu.{key}")[at].text for key in expected}
        assert cells == expected
        of_loss = contexts.over["nll"][row]
        assert table.column("over.nll.mean")[at].text == signed(of_loss.mean, 3)
    assert {table.column(f"over.bleu.{key}")[0].text for key in expected} == {""}
    titles = {column.key.removeprefix("over.bleu."): column.title for column in table.columns}
    assert (titles["mean"], titles["here"]) == ("mean of Δ", "95% CI here")


def test_the_verdict_on_a_mean_is_by_what_is_better_and_the_lowest_baseline(spec: Path) -> None:
    _, contexts = overview(spec)
    results = [table.results for table in contexts.tables.values() if table.results]

    def judged(kind: str, low: float, high: float) -> Verdict | None:
        return verdict_over(kind, Interval(low, high), results)

    assert [judged(kind, 3.0, 4.0) for kind in ("bleu", "nll")] == [Verdict.BETTER, Verdict.WORSE]
    assert judged("bleu", -1.0, 1.0) is Verdict.NO_DIFFERENCE
    metrics = {**results[1].baseline.metrics, metric_of("bleu", results[1]): Estimate({1: 3.9})}
    summaries = [replace(results[1].baseline, metrics=metrics), *results[1].summaries[1:]]
    results[1] = replace(results[1], summaries=summaries)
    assert judged("bleu", -1.0, 1.0) is Verdict.CANNOT_TELL, "3.9 is less than twice the band"


def test_the_verdict_of_three_contexts_is_of_contexts_like_them(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decided_here(*given: Any, **options: Any) -> OverContexts | None:
        over = over_contexts(*given, **options)
        return over and replace(over, here=Interval(3.0, 4.0), interval=Interval(-9.0, 16.0))

    outcome = reported(spec)
    assert outcome.table.contexts is not None
    monkeypatch.setattr(module, "over_contexts", decided_here)
    table = tabulate(outcome.experiment, outcome.table.contexts.tables)
    assert [cell.text for cell in table.column("over.bleu.verdict")] == ["", *["cannot tell"] * 2]


@pytest.mark.parametrize("looks", [Looks(), Looks(planned=(2, 3))])
def test_intervals_of_new_seeds_allow_for_looks_where_there_are_some(
    looks: Looks, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def over(*given: Any, has_looks: bool) -> OverContexts | None:
        asked.append(has_looks)
        return over_contexts(*given, has_looks=has_looks)

    outcome = reported(spec)
    assert outcome.table.contexts is not None
    tables = {
        name: replace(table, results=replace(table.results, looks=looks))
        for name, table in outcome.table.contexts.tables.items()
        if table.results
    }
    monkeypatch.setattr(module, "over_contexts", over)
    tabulate(outcome.experiment, tables)
    assert asked == [bool(looks.planned)] * 4  # rows by BLEU and NLL


def test_the_sentence_names_what_changes_with_size(spec: Path) -> None:
    _, contexts = overview(spec)
    sentence = "differences change with each doubling of d_model: "
    results = {name: each.results for name, each in contexts.tables.items() if each.results}

    def concluded(slope: float, half: float) -> str:
        trend = Slope(slope, Interval.around(slope, half))
        bleu = {row: replace(each, trend=trend) for row, each in contexts.over["bleu"].items()}
        changed = replace(contexts, over={**contexts.over, "bleu": bleu})
        return conclusion(["none", "rms"], results, changed)

    assert f"{sentence}none by +2.5 and rms by +2.5 BLEU" in concluded(2.5, half=2.0)
    falls = f"{MINUS}2.5"
    assert f"{sentence}none by {falls} and rms by {falls} BLEU" in concluded(-2.5, half=2.0)
    assert sentence not in concluded(0.1, half=0.05)


def test_a_context_without_verdicts_or_numbers(tmp_path: Path) -> None:
    spec = finished(tmp_path)
    assert reported(spec, seeds=[1]).table.conclusion == (
        "With one seed there are no verdicts in single contexts: the one on the mean is by what "
        "they show together."
    )
    end(tmp_path, "rms", "failed", [1, 2, 3])
    table = reported(spec).table
    assert {table.column(f"over.bleu.{key}")[2].text for key in ("mean", "here", "tau")} == {
        NOTHING
    }
    assert table.column("over.bleu.mean")[1].text != NOTHING
    assert re.search(r"rms is [^;]* in narrow and wide[;.]", table.conclusion)


def test_the_baseline_alone_has_nothing_to_compare_in_any_context(spec: Path) -> None:
    for seeds in ([1], None):
        table = reported(spec, only=["baseline"], seeds=seeds).table
        assert table.conclusion.startswith("There is nothing to compare")


def test_what_diverged_in_a_context_is_not_judged_over_all(tmp_path: Path) -> None:
    spec = finished(tmp_path)
    end(tmp_path, "rms", "diverged", [2])
    table = reported(spec).table
    assert table.column("middle.bleu.difference")[2].mark == "§"
    assert table.column("over.bleu.mean")[2].text == NOTHING
    assert table.more is not None
    assert table.more.column("over.nll.mean")[2].text == NOTHING
    drawing = draw_contexts(table)
    assert drawing is not None
    panels = {axes.get_title(loc="left"): axes for axes in drawing.figure.axes}
    remarks = {
        row: [text.get_text().strip() for text in axes.texts] for row, axes in panels.items()
    }
    assert remarks == {"none": [], "rms": ["diverged with 1 of 3 seeds"]}
    assert panels["rms"].get_xlim()[0] > -10, "no mark counts 0 BLEU"
    assert re.search(r"rms is .* in narrow and wide, and diverged in middle[;.]", table.conclusion)
    for context in ("narrow", "wide"):
        end(tmp_path, "rms", "diverged", [1], context)
    assert re.search(
        r" rms diverged in narrow, middle and wide[;.]", reported(spec).table.conclusion
    )
    for context in NAMES:
        end(tmp_path, "rms", "failed", [1, 2, 3], context)
    end(tmp_path, "none", "failed", [1, 2, 3])
    end(tmp_path, "baseline", "diverged", [3])
    assert reported(spec).table.conclusion == (
        "The baseline diverged in middle: no verdicts over all contexts."
    )
    for path in tmp_path.glob("results/runs/*/record.json"):
        if json.loads(path.read_text(encoding="utf-8"))["seed"] > 1:
            path.unlink()
    assert reported(spec).table.conclusion == "Too few runs are done: no verdicts yet."


def test_every_mark_is_the_verdict_of_its_context(spec: Path) -> None:
    table, contexts = overview(spec)
    marks = {
        Verdict.BETTER: "↑",
        Verdict.WORSE: "↓",
        Verdict.NO_DIFFERENCE: "=",
        Verdict.CANNOT_TELL: "?",
    }
    seen = set()
    for name, each in contexts.tables.items():
        assert each.results is not None
        _, *cells = table.column(f"{name}.bleu.difference")
        for cell, row in zip(cells, ("none", "rms"), strict=True):
            verdict = each.results.verdict(row, each.results.bleu)
            assert verdict is not None
            assert cell.mark == marks[verdict]
            seen.add(verdict)
            assert f"{row_names([row])} " in table.conclusion
    assert len(seen) > 1


@pytest.mark.figures
def test_the_page_sorts_the_overview_by_its_numbers(spec: Path) -> None:
    table = reported(spec).table
    page = render(table, "html")
    for key in ("narrow.bleu.difference", "over.bleu.mean", "over.bleu.trend"):
        (column,) = [column for column in table.columns if column.key == key]
        pattern = f'data-label="{re.escape(column.title)}" data-value="([^"]+)"'
        shown = [number(float(value), 1) for value in re.findall(pattern, page)]
        cells = [cell.value.removeprefix("+") for cell in table.column(key) if cell.value]
        assert shown[: len(cells)] == cells


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "html"])
def test_every_format_for_readers_has_all_contexts(spec: Path, form: str) -> None:
    outcome = reported(spec)
    text = render(outcome.table, form)
    for word in ("narrow", "middle", "wide", "rms"):
        assert word in text
    assert "Hartung and Knapp" in text
    if form == "html":
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(ids) == len(set(ids))
        assert all(f'href="#context-{name}"' in text for name in NAMES)
        assert text.count("<figure>") > 3
        assert text.count("Every value in which a row differs") == len(NAMES)
        assert text.count("@software{ablate") == 1
        assert text.count("<dt><code>norm: rms</code></dt>") == 1
        assert all(record["hash"] in text for record in outcome.records.values())
    if form == "latex":
        assert r"$\tau$" in text
        printed = re.sub(r"(?m)^%.*$", "", text)
        assert not re.search("[↑↓τ]", printed)
        for label in ("contexts:", r"$\Delta$:", "mean:", "trend:", "BLEU:"):
            assert printed.count(f"{label} ") == 1, "the signs of the columns are explained"
        heads = [line for line in printed.splitlines() if r"$\Delta$BLEU" in line]
        assert all(head.count(r"$\Delta$BLEU") <= head.count(r"of $\Delta$") for head in heads)


def test_a_paper_explains_the_marks_of_some_contexts(tmp_path: Path) -> None:
    spec = finished(tmp_path)
    end(tmp_path, "rms", "diverged", [2])
    printed = re.sub(r"(?m)^%.*$", "", render(reported(spec).table, "latex"))
    assert r"\rlap{\S{}}" in printed
    assert r"middle, \S{}: rms: a row with diverged seeds has no interval" in printed


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_the_few_columns_of_a_paper_are_all_of_an_overview(form: str, spec: Path) -> None:
    table = reported(spec).table
    assert render(table, form, columns=["compact"]) == render(table, form)


def test_the_example_of_a_program_reads_the_verdicts_of_every_context(spec: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "verdicts.py"
    verdicts = runpy.run_path(str(path))["verdicts"]
    words = ("report", spec, "--results", spec.parent / "results", "--json")
    content = json.loads(call(*words)[1])
    rows = [(name, row) for name in NAMES for row in content["contexts"][name]["rows"][1:]]
    assert verdicts(content) == {
        f"{name}: {row['name']}": row["differences"]["test.test.bleu"]["verdict"]
        for name, row in rows
    }
    of_one_seed = json.loads(call(*words, "--seeds", "1")[1])
    assert {*verdicts(of_one_seed).values()} == {"no verdict"}


def test_programs_read_all_numbers(spec: Path) -> None:
    results = spec.parent / "results"
    status, text = call("report", spec, "--results", results, "--json")
    assert status == 0
    content = json.loads(text)
    assert_described(content, "contexts report")
    assert content["trend"] == "model.dims.d_model"
    over = content["rows"][0]["over"]["bleu"]
    table, contexts = overview(spec)
    known = contexts.over["bleu"]["none"]
    assert (over["n"], over["mean"], over["tau"]) == (3, known.mean, known.tau)
    for key in ("here", "interval", "prediction"):
        assert Interval(*over[key]) == getattr(known, key)
    assert known.trend is not None
    assert over["trend"]["estimate"] == known.trend.estimate
    assert over["verdict"] == table.column("over.bleu.verdict")[1].text
    lines = lines_of(call("report", spec, "--results", results, "--format", "csv")[1])
    of_row = {e["context"]: e for e in lines if (e["row"], e["metric"]) == ("none", "bleu")}
    assert [*of_row] == [*NAMES, "(here)", "(mean)", "(new)", "(trend)"]
    assert float(of_row["(mean)"]["estimate"]) == over["mean"]
    assert float(of_row["(mean)"]["low"]) == over["interval"][0]
    assert float(of_row["(here)"]["low"]) == over["here"][0]
    assert float(of_row["(new)"]["low"]) == over["prediction"][0]
    assert float(of_row["(trend)"]["high"]) == over["trend"]["interval"][1]
    for name in NAMES:
        rows = {row["name"]: row for row in content["contexts"][name]["rows"]}
        own = rows["none"]["differences"]["test.test.bleu"]
        assert float(of_row[name]["estimate"]) == own["estimate"]
        assert of_row[name]["verdict"] == own["verdict"]
    assert "trial" not in lines[0]
    trial = lines_of(
        call("report", spec, "--results", results, "--format", "csv", "--seeds", "1")[1]
    )
    assert {line["trial"] for line in trial} == {"seeds 1 in place of 1, 2, 3"}
    seeds = lines_of(call("report", spec, "--results", results, "--format", "by-seed")[1])
    assert {line["context"] for line in seeds} == {*NAMES}


def test_a_context_without_results_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "size.yaml"
    spec.write_text(TEXT, encoding="utf-8")
    with pytest.raises(StoreError, match="holds no run of"):
        reported(spec)
    for name in ("narrow", "wide"):
        finish(tmp_path / f"size.yaml#{name}", tmp_path / "results", place=name)
    table, contexts = overview(spec)
    assert contexts.sizes == {"narrow": 16, "wide": 64}
    assert "left out: " in capsys.readouterr().err
    (mean,) = [note.text for note in table.footnotes if note.label == "mean"]
    assert "nothing of other contexts" in mean
    assert "over.bleu.prediction" not in {column.key for column in table.columns}


def test_the_first_context_with_results_has_neither_a_mean_nor_a_trend(tmp_path: Path) -> None:
    spec = tmp_path / "size.yaml"
    text = TEXT.replace("middle: {model.dims.d_model: 32}", "middle: {model.n_layers: 2}")
    spec.write_text(text, encoding="utf-8")
    finish(tmp_path / "size.yaml#narrow", tmp_path / "results", place="narrow ")
    table, _ = overview(spec)
    assert made_up.notes(table)["mean"] == "none so far: only one context has results."
    assert "in the one context with results" in table.conclusion
    finish(tmp_path / "size.yaml#middle", tmp_path / "results", place="middle ")
    table, contexts = overview(spec)
    assert {*contexts.sizes.values()} == {16}, "as wide as the first"
    assert {over.trend for over in contexts.over["bleu"].values()} == {None}
    assert table.column("over.bleu.trend")[1].text == NOTHING


def test_a_run_that_is_missing_in_one_context_is_missing_in_all(spec: Path) -> None:
    outcome = reported(spec)
    assert outcome.table.contexts is not None
    outcomes = {
        name: replace(outcome, table=table, records={}, exit_status=int(name == "middle"))
        for name, table in outcome.table.contexts.tables.items()
    }
    assert joined(outcome.experiment, outcomes).exit_status == 1


def test_a_note_that_contexts_share_stands_once(spec: Path) -> None:
    outcome = reported(spec)
    assert outcome.table.contexts is not None
    tables = {
        name: replace(
            table,
            footnotes=(
                Footnote("verdict", "of all", is_vital=True),
                Footnote("rms", f"wide: {name == 'wide'}", is_vital=True),
            ),
        )
        for name, table in outcome.table.contexts.tables.items()
    }
    notes = tabulate(outcome.experiment, tables).footnotes
    vital = {note.label: note.text for note in notes if note.is_vital and note.label != "Δ"}
    assert vital == {
        "verdict": "of all",
        "narrow and middle, rms": "wide: False",
        "wide, rms": "wide: True",
    }


def test_the_overview_says_what_rows_were_matched_by(tmp_path: Path) -> None:
    match = "match: {on: params, via: model.feed_forward.d_ff, tolerance: 0.05}\n"
    contexts = "contexts: {short: {}, long: {training.steps: 9}}\n"
    gated = "variants: {gated: {model.feed_forward.name: swiglu}}\n"
    notes = reported(finished(tmp_path, f"{BASE}{match}{contexts}{gated}")).table.footnotes
    (text,) = (note.text for note in notes if note.label == "matched")
    assert text.endswith("model.feed_forward.d_ff was solved for in gated")


def test_what_takes_one_context_says_which_there_are(spec: Path) -> None:
    with pytest.raises(SpecError, match=r"takes one: .*size\.yaml#narrow"):
        ablate.hashes(spec)
    assert len(ablate.hashes(spec.with_name("size.yaml#wide"))) == 9
    study = ablate.study(spec, results=spec.parent / "results")
    assert len(study.records) == 27
    assert {*study.table().index} == {"none", "rms"}
    assert {*study.curves()["row"]} == {f"narrow: {row}" for row in ("baseline", "none", "rms")}
    with pytest.raises(SpecError, match="translations are those of one context"):
        study.translations()


def test_plan_has_every_context(spec: Path) -> None:
    words: Sequence[str | Path] = ("plan", spec, "--results", spec.parent / "results")
    status, text = call(*words)
    assert status == 0
    assert all(f"/{name}" in text for name in NAMES)
    assert text.count("9 of 9 runs are done") == 3
    content = json.loads(call(*words, "--json")[1])
    assert_described(content, "contexts plan")
    assert [*content["contexts"]] == NAMES
    alone = json.loads(call("plan", f"{spec}#wide", *words[2:], "--json")[1])
    assert_described(alone, "plan")
    assert alone == {"schema": 1, **content["contexts"]["wide"]}


@pytest.mark.commands
def test_runs_of_all_contexts_are_kept_and_archived(spec: Path, tmp_path: Path) -> None:
    results = spec.parent / "results"
    assert api.collect_garbage(results, [spec], is_trial=True) == []
    unused = api.collect_garbage(results, [spec.with_name("size.yaml#wide")], is_trial=True)
    assert len(unused) == 18
    api.archive([spec], tmp_path / "all.tar.xz", results=results)
    restored = api.restore(tmp_path / "all.tar.xz", results=tmp_path / "results")
    assert len(restored.new) == 27
    one, other = (
        render(api.report(spec, results=of).table, "json") for of in (results, tmp_path / "results")
    )
    assert one == other


@pytest.mark.commands
def test_rows_are_compared_in_their_context(spec: Path, tmp_path: Path) -> None:
    results = spec.parent / "results"
    compared = api.compare(str(spec), str(spec), results=results)
    assert [row.name for row in compared.rows] == [
        f"{name}: {row}" for name in NAMES for row in ("baseline", "none", "rms")
    ]
    assert {compared.outcome(row, "test.test.bleu") for row in compared.rows} == {"equal"}
    assert compared.negligible.bleu == 2
    of_folders = api.compare(results, results, spec)
    assert [row.name for row in of_folders.rows] == [row.name for row in compared.rows]
    scored = spec.with_name("scored.yaml")
    scored.write_text(f"{TEXT}metrics: {{name: bleu, tokenize: zh}}\n", encoding="utf-8")
    rescored = api.compare(spec, scored, results=results).rows
    changed = [
        a.samples["test.test.bleu"] != b.samples["test.test.bleu"]
        for a, b in zip(compared.rows, rescored, strict=True)
    ]
    assert changed == [True] * 3 + [False] * 6, "the runs of narrow alone keep translations"


@pytest.mark.commands
def test_a_context_without_runs_is_left_out_of_a_comparison(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, other = spec.parent / "results", spec.with_name("other.yaml")
    other.write_text(
        TEXT.replace("middle: {model.dims.d_model: 32", "slim: {model.dims.d_model: 8")
    )
    rows = api.compare(spec, other, results=results).rows
    assert [row.name for row in rows] == [
        f"{name}: {row}" for name in ("narrow", "wide") for row in ("baseline", "none", "rms")
    ]
    assert "left out: " in capsys.readouterr().err
    with pytest.raises(StoreError, match="holds no run of"):
        api.compare(spec, spec, results=tmp_path)


def test_the_figure_has_the_numbers_of_the_overview_each_in_its_line(spec: Path) -> None:
    table, contexts = overview(spec)
    drawing = draw_contexts(table)
    assert drawing is not None
    names = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
    for axes, row in zip(drawing.figure.axes, ("none", "rms"), strict=True):
        assert axes.get_title(loc="left") == row
        over = contexts.over["bleu"][row]
        expected = {"mean": (over.mean, over.interval)}
        for name, each in contexts.tables.items():
            assert each.results is not None
            difference = each.results.difference(row, each.results.bleu)
            assert difference is not None
            expected[name] = difference.estimate or 0.0, difference.simultaneous
        lines = {line["context"]: line for line in drawing.numbers if line["row"] == row}
        assert {
            name: (line["difference"], Interval(line["low"], line["high"]))
            for name, line in lines.items()
        } == expected
        new = lines["mean"]["prediction.low"], lines["mean"]["prediction.high"]
        assert Interval(*new) == over.prediction
        drawn = [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
        marks = {names[int(of[0][1])]: of[0][0] for of in drawn if len(of) == 1}
        assert marks == {name: estimate for name, (estimate, _) in expected.items()}
        for name, (_, ends) in expected.items():
            assert ends is not None
            assert [[ends.low, names.index(name)], [ends.high, names.index(name)]] in drawn


def test_the_sentence_has_the_verdicts_of_each_row_by_context(spec: Path) -> None:
    better, worse, unknown = Interval(3.0, 4.0), Interval(-4.0, -3.0), Interval(-9.0, 9.0)
    (_, contexts), results = overview(spec), {}
    for name, of_none in zip(NAMES, (better, unknown, better), strict=True):
        known = contexts.tables[name].results
        assert known is not None
        compared = known.comparisons["test.test.bleu"]
        judged = {
            row: replace(compared.differences[row], simultaneous=interval)
            for row, interval in (("none", of_none), ("rms", worse))
        }
        both = {"test.test.bleu": replace(compared, differences=judged)}
        results[name] = replace(known, comparisons=both)
    text = conclusion(["none", "rms"], results, contexts)
    assert "rms is worse than the baseline in all 3 contexts" in text
    assert re.search(r"“none” is better in narrow and wide and not told .* in middle", text)
    two = {name: results[name] for name in ("narrow", "wide")}
    text = conclusion(["none", "rms"], two, contexts)
    assert "“none” is better than the baseline in both" in text


@pytest.mark.parametrize("n", [2, 3])
def test_the_figure_says_of_which_contexts_the_interval_of_the_mean_is(
    n: int, spec: Path, tmp_path: Path
) -> None:
    if n == 2:
        spec = tmp_path / "two.yaml"
        spec.write_text(TEXT.replace("  wide: {model.dims.d_model: 64}\n", ""), encoding="utf-8")
        for name in ("narrow", "middle"):
            finish(spec.with_name(f"two.yaml#{name}"), tmp_path / "results")
    drawing = draw_contexts(api.report(spec, results=spec.parent / "results").table)
    assert drawing is not None
    legend = " ".join(drawing.figure.get_supxlabel().split())
    assert ("of the mean elsewhere" in legend, "of the mean in these contexts" in legend) == (
        n == 3,
        n == 2,
    )


def test_the_figure_explains_the_mark_of_what_has_no_verdict(spec: Path) -> None:
    drawing = draw_contexts(reported(spec, seeds=[1]).table)
    assert drawing is not None
    marks = {line.get_marker() for axes in drawing.figure.axes for line in axes.lines}
    assert "D" in marks
    assert "\u25c7 none of these" in " ".join(drawing.figure.get_supxlabel().split())


@pytest.mark.commands
def test_a_gate_passes_if_each_context_does(spec: Path, tmp_path: Path) -> None:
    results = spec.parent / "results"
    reference = tmp_path / "size.reference.yaml"
    check = "decoded: {kind: exact, measure: test.test.bleu, seeds: 2}"
    reference.write_text(f"schema: 2\nchecks:\n  {check}\n", encoding="utf-8")
    words = ("gate", spec, "--reference", reference, "--results", results, "--stored")
    status, text = call(*words, "--bless", "--json")
    assert status == 0, text
    assert_described(json.loads(text), "contexts gate --bless")
    blessed = [tmp_path / f"size-{name}.reference.yaml" for name in NAMES]
    assert all(file.is_file() for file in blessed)
    status, text = call(*words, "--json", "--junit", tmp_path / "gate.xml")
    gated = json.loads(text)
    assert_described(gated, "gate")
    assert status == 0
    assert [each["check"] for each in gated["verdicts"]] == [f"{name}: decoded" for name in NAMES]
    assert (tmp_path / "gate.xml").read_text().count("<testcase") == 3
    others = tmp_path / "others"
    for name, place in (("narrow", "narrow "), ("middle", "other "), ("wide", "wide ")):
        finish(spec.with_name(f"size.yaml#{name}"), others, place=place)
    gated = json.loads(call(*words[:4], "--results", others, "--stored", "--json")[1])
    assert [each["passed"] for each in gated["verdicts"]] == [True, False, True]


@pytest.mark.commands
def test_a_run_trains_in_every_context_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABLATE_NO_FIGURES", raising=False)
    two = CONTEXTS.replace("  wide: {model.dims.d_model: 64}\n", "")
    text = f"{BASE}{two}variants: {{none: {{model.position: none}}}}\n"
    (tmp_path / "size.yaml").write_text(text, encoding="utf-8")
    words = ("run", "size.yaml", "--device", "cpu", "--no-probe", "--json")
    status, printed = call(*words)
    assert status == 0
    content = json.loads(printed)
    assert_described(content, "contexts run")
    folder = tmp_path / "results" / content["experiment"]
    assert {"table.md", "contexts.svg", "narrow", "middle"} <= {f.name for f in folder.iterdir()}
    assert (folder / "narrow" / "table.md").is_file()
    records = {
        file: file.stat().st_mtime_ns for file in tmp_path.glob("results/runs/*/record.json")
    }
    assert len(records) == 8
    again = json.loads(call(*words)[1])
    assert again["rows"] == content["rows"]
    assert {file: file.stat().st_mtime_ns for file in records} == records
    trial = json.loads(call(*words, "--only", "none", "--seeds", "1", "--no-figures")[1])
    assert trial["trial"]
    (table,) = folder.glob("trials/*/table.md")
    assert "seeds 1 in place of 1, 2" in table.read_text(encoding="utf-8")


@pytest.mark.commands
def test_a_call_that_leaves_submits_the_runs_of_every_context(tmp_path: Path) -> None:
    submitted: list[str] = []

    class Leaving(Local):
        def detach(self, work: Sequence[Sequence[TaskGroup]]) -> None:
            submitted.extend(task.experiment for groups in work for (task,) in groups)
            raise DetachedError(f"{len(submitted)} submitted")

    (tmp_path / "size.yaml").write_text(f"{BASE}{CONTEXTS}", encoding="utf-8")
    backend = Leaving([Device("cpu")])
    options = api.RunOptions(results=tmp_path / "results", backend=backend, probes=False)
    with pytest.raises(DetachedError, match="6 submitted"):
        api.run(tmp_path / "size.yaml", options)
    assert [name.rpartition("/")[2] for name in submitted] == [x for x in NAMES for _ in range(2)]


@pytest.mark.commands
def test_a_row_may_be_decided_in_one_context_alone(tmp_path: Path) -> None:
    spec = finished(tmp_path, TEXT.replace("seeds: [1, 2, 3]", "looks: [2, 4, 6]"))
    table, contexts = overview(spec)
    n_seeds = {}
    for name, of_context in contexts.tables.items():
        assert of_context.results is not None
        n_seeds[name] = [len(summary.outcomes) for summary in of_context.results.summaries]
    assert len({tuple(each) for each in n_seeds.values()}) > 1, n_seeds
    said = made_up.notes(table)
    assert said["seeds"] == "as many of each row as the looks of its context came to, 6 at most"
    tables = {name: replace(each, details=None) for name, each in contexts.tables.items()}
    page = render(replace(table, contexts=replace(contexts, tables=tables)), "html")
    assert f"3 rows, {min(map(min, n_seeds.values()))} to 6 seeds each" in page
    assert "intervals of new seeds are as wide as those of the contexts on average" in said["mean"]
    assert all(map(contexts.over["bleu"].get, ("none", "rms")))


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_has_further_contexts_below_each_with_its_intervals(
    spec: Path, width: int
) -> None:
    lines = render(reported(spec).table, "terminal", width).splitlines()
    assert max(map(len, lines)) <= width
    heads = [(line, detail) for line, detail in pairwise(lines) if "ΔBLEU" in detail]
    assert re.findall(r"narrow|middle|wide", " ".join(line for line, _ in heads)) == NAMES
    for line, detail in heads:
        assert line.count("95% CI") >= detail.count("ΔBLEU")


@pytest.mark.commands
def test_the_numbers_of_every_context_say_where_they_come_from(tmp_path: Path) -> None:
    spec = finished(tmp_path)
    results, other = tmp_path / "results", tmp_path / "other"
    shutil.copytree(results, other)
    for path in other.glob("runs/*/record.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("digest") and record["experiment"].endswith("wide"):
            signed = {"bleu_signature": "nrefs:1|tok:zh", "bleu": 1.0}
            record["test"]["test"] |= signed
            Store(other).save({**record, "hardware": {"device": "cpu", "cpu": "Quipu 2"}})
    compared = api.compare(results, other, spec)
    notes = made_up.notes(compared.table())
    assert notes["hardware"] == "cpu, Abacus 9, 1 thread → cpu, Abacus 9, 1 thread; cpu, Quipu 2"
    assert notes["BLEU"].endswith("which is not compared")
    assert "corpus" in notes["the same"]


@pytest.mark.commands
def test_rows_of_other_contexts_are_not_matched(tmp_path: Path) -> None:
    spec, later = finished(tmp_path), tmp_path / "later.yaml"
    later.write_text(TEXT.replace("steps: 6", "steps: 7"), encoding="utf-8")
    finish(tmp_path / "later.yaml#wide", spec.parent / "results", place="wide ")
    compared = api.compare(spec, later, results=spec.parent / "results")
    assert [row.names for row in compared.rows] == [
        (f"wide: {row}", f"wide: {row}") for row in ("baseline", "none", "rms")
    ]


@pytest.mark.commands
def test_tables_of_contexts_are_compared_with_stored_runs(tmp_path: Path) -> None:
    spec = finished(tmp_path)
    results = tmp_path / "results"
    for path in (spec, *api.contexts_of(spec).values()):
        outcome = api.report(path, results=results)
        write_tables(outcome.table, results / outcome.experiment.name)
    (results / "runs").rename(tmp_path / "runs")
    git = ["git", "-C", str(results), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "tables"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "runs").rename(results / "runs")
    for before, after in ((f"{spec}@HEAD", f"{spec}@HEAD"), (f"{spec}@HEAD", str(spec))):
        compared = api.compare(before, after, results=results)
        assert {row.shifts["test.test.bleu"].method for row in compared.rows} == {"equal"}
        assert [row.names for row in compared.rows] == [
            (f"{name}: {row}",) * 2 for name in NAMES for row in ("baseline", "none", "rms")
        ]
    alone = api.compare(f"{spec}#wide@HEAD", f"{spec}#wide", results=results)
    assert {row.shifts["test.test.bleu"].method for row in alone.rows} == {"equal"}
    shutil.rmtree(results / outcome.experiment.name)
    subprocess.run([*git, "commit", "-qam", "none of wide"], check=True)
    with pytest.raises(StoreError, match=r"has no .*size/wide/table\.csv; commit the"):
        api.compare(f"{spec}@HEAD", f"{spec}@HEAD", results=results)
