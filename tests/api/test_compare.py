"""Two sets of results row by row: what is matched, what differs, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ablate import api
from ablate.cli.app import app
from ablate.data.corpus import Corpus
from ablate.errors import SpecError, StoreError
from ablate.registry import Choice, build
from ablate.report import write_tables
from ablate.report.values import interval_text, signed
from ablate.store import Store
from tests.made_up_runs import EXPERIMENT, finish

THREE = EXPERIMENT.replace("seeds: [1, 2]", "seeds: [1, 2, 3]")
RENAMED = THREE.replace("  none:", "  nothing:").replace("steps: 6", "steps: 7")
GAINS = [0.0, 0.9, 2.1, 2.4]
"""In BLEU, by seed, of the row that is changed."""


def store_runs(spec: Path, results: Path, text: str = THREE) -> Path:
    spec.write_text(text, encoding="utf-8")
    finish(spec, results)
    return results


def change(results: Path, row: str, edit: Callable[[dict[str, Any]], None]) -> None:
    store = Store(results)
    for path in results.glob("runs/*/record.json"):
        record = store.load(path.parent.name) or {}
        if record["variant"] == row:
            edit(record)
            store.save(record)


def _better(record: dict[str, Any]) -> None:
    record["test"]["test"]["bleu"] += GAINS[record["seed"]]
    record["params"]["total"] = record["params"]["total"] * 5 // 4
    record["speed"]["train_target_tokens_per_second"] *= 2
    record["speed"]["decode_sentences_per_second"] *= 4
    record["memory"]["train_peak_mib"] *= 1.5
    record["git"] = {"commit": "feed" * 10, "is_clean": True}
    record["corpus"] = {**record["corpus"], "n_train": 7}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with the tables of ``before`` and, one commit later, of ``after``.

    The runs are the same but for a change of one row.
    """
    folder = tmp_path_factory.mktemp("original")
    spec = folder / "experiments" / "pe.yaml"
    spec.parent.mkdir()
    _git(folder, "init", "-q")
    for name in ("before", "after"):
        results = store_runs(spec, folder / name)
        if name == "after":
            change(results, "rms", _better)
        write_tables(api.report(spec, results=results).table, folder / "results" / "pe")
        _git(folder, "add", "results")
        _git(folder, "commit", "-qm", name)
    return folder


def _git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def spec(tmp_path: Path, original: Path) -> Path:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "experiments" / "pe.yaml"


@pytest.fixture
def before(spec: Path) -> Path:
    return spec.parents[1] / "before"


@pytest.fixture
def after(spec: Path) -> Path:
    return spec.parents[1] / "after"


@pytest.fixture
def repository(spec: Path) -> Path:
    return spec.parents[1] / "results"


def notes(compared: api.Compared) -> dict[str, str]:
    return {note.label: note.text for note in compared.table().footnotes}


def test_a_change_of_one_row_is_told_from_the_equal_ones(
    before: Path, after: Path, spec: Path
) -> None:
    compared = api.compare(before, after, spec)
    bleu = "test.test.bleu"
    assert [row.matched_by for row in compared.rows] == ["spec"] * 3
    assert [compared.outcome(row, bleu) for row in compared.rows[:2]] == ["equal", "equal"]
    shift = compared.rows[2].shifts[bleu]
    assert (shift.method, shift.n, shift.df) == ("paired", 3, 2)
    assert shift.estimate == pytest.approx(1.8)
    footnotes = notes(compared)
    assert footnotes["commit"].endswith("feedfeedfeed (3 runs)")
    assert "7 training pairs" in footnotes["corpus"]
    assert footnotes["the same"] == "note, tokenizer, hardware, software, engine and code"
    assert "spec, all rows" not in footnotes
    assert "baseline and none: equal to the last bit" in compared.table().conclusion
    assert footnotes["Δ"].endswith("equal: the scores do not differ in any bit")
    table = compared.table()
    of_rows = {
        column.header: [cell.value for cell in table.column(column.key)[1:]]
        for column in table.columns
        if column.key.startswith(("params", "speed", "memory"))
    }
    assert of_rows == {
        "params": ["=", "+25.0%"],
        "train": ["1.00", "2.00"],
        "decode": ["1.00", "4.00"],
        "memory": ["1.00", "1.50"],
    }


def test_between_tokenizers_losses_are_compared_per_character(
    before: Path, after: Path, spec: Path
) -> None:
    def retokenize(record: dict[str, Any]) -> None:
        record["tokenizer"] = {**record["tokenizer"], "fingerprint": "other" * 3}
        record["test"]["test"]["nll"] += 5

    nll = "test.test.nll"
    change(after, "none", retokenize)
    compared = api.compare(before, after, spec)
    keys = [column.key for column in compared.table().columns]
    assert "test.test.bits_per_character.difference" in keys
    assert f"{nll}.difference" not in keys
    assert compared.rows[1].shifts[nll].simultaneous is not None
    assert compared.outcome(compared.rows[1], nll) is None
    assert "bits per character" in notes(compared)["columns"]


def test_of_tables_too_losses_of_two_tokenizers_are_compared_per_character(
    repository: Path, after: Path
) -> None:
    assert api.compare("pe@HEAD~1", after, results=repository).has_one_tokenizer

    def retokenize(record: dict[str, Any]) -> None:
        record["tokenizer"] = {**record["tokenizer"], "fingerprint": "other" * 3}

    for row in ("baseline", "none", "rms"):
        change(after, row, retokenize)
    compared = api.compare("pe@HEAD~1", after, results=repository)
    keys = [column.key for column in compared.table().columns]
    assert "test.test.bits_per_character.difference" in keys
    assert "test.test.nll.difference" not in keys


def test_a_further_metric_that_tables_hold_has_a_column(repository: Path, spec: Path) -> None:
    results = spec.parents[1] / "before"

    def score(record: dict[str, Any]) -> None:
        scores = record["test"]["test"]
        scores["comet"] = scores.get("comet", record["seed"]) + 0.25

    for _ in range(2):
        for row in ("baseline", "none", "rms"):
            change(results, row, score)
        write_tables(api.report(spec, results=results).table, repository / "pe")
        _git(repository, "add", ".")
        _git(repository, "commit", "-qm", "comet")
    compared = api.compare("pe@HEAD~1", "pe@HEAD", results=repository)
    assert compared.metrics == ["comet"]
    assert {row.shifts["test.test.comet"].estimate for row in compared.rows} == {0.25}
    assert "Δcomet test" in [column.title for column in compared.table().columns]


def test_scores_of_two_tokenizers_are_not_compared(
    before: Path, after: Path, spec: Path, repository: Path
) -> None:
    def rescored(record: dict[str, Any]) -> None:
        scores = record["test"]["test"]
        scores["bleu_signature"] = scores["bleu_signature"].replace("tok:13a", "tok:zh")
        scores["chrf_signature"] = scores["chrf_signature"].replace("version:", "version:9.")

    for row in ("baseline", "none", "rms"):
        change(after, row, rescored)
    for compared in (
        api.compare(before, after),
        api.compare("pe@HEAD", after, results=repository),
    ):
        measured = {metric for row in compared.rows for metric in row.samples}
        assert "test.test.bleu" not in measured
        assert {"test.test.nll", "test.test.chrf"} <= measured, "versions alone are no reason"
        assert [compared.outcome(row, "test.test.bleu") for row in compared.rows] == [None] * 3
        note = notes(compared)["BLEU"]
        assert re.fullmatch(r".*tok:13a.* before, .*tok:zh.* after, which is not compared", note)
        assert list(compared.to_json()["scored_apart"]) == ["bleu"]
        assert "which is not compared" in compared.text("terminal", 100).replace("\n", " ")


def test_rows_are_matched_by_what_they_are(before: Path, spec: Path, tmp_path: Path) -> None:
    other = spec.with_name("other.yaml")
    compared = api.compare(before, store_runs(other, tmp_path / "other", RENAMED))
    assert [row.names[1] for row in compared.rows] == ["baseline", "nothing", "rms"]
    assert {row.matched_by for row in compared.rows} == {"changes"}
    assert notes(compared)["spec, all rows"] == "training.steps: 6 → 7"
    assert "none → nothing" in compared.text("terminal")


def test_rows_of_one_experiment_are_matched_before_those_of_another(
    before: Path, spec: Path, tmp_path: Path
) -> None:
    store_runs(spec.with_name("a.yaml"), before, THREE.replace("steps: 6", "steps: 5"))
    after = store_runs(spec, tmp_path / "other", THREE.replace("steps: 6", "steps: 7"))
    compared = api.compare(before, after)
    assert [row.names[0] for row in compared.rows] == ["pe:baseline", "pe:none", "pe:rms"]


def test_what_shares_a_name_alone_is_matched_last(spec: Path, before: Path, tmp_path: Path) -> None:
    text = THREE.replace("model.norm: rms", "model.residual: pre") + "  last: {model.norm: scale}\n"
    results = store_runs(spec.with_name("other.yaml"), tmp_path / "other", text)
    compared = api.compare(before, results)
    assert [row.matched_by for row in compared.rows] == ["spec", "spec", "name"]
    assert list(compared.unmatched) == [[], ["last"]]
    footnotes = notes(compared)
    assert footnotes["matched"] == "rms: by their names alone"
    assert "model.residual: post" in footnotes["spec, rms"]
    assert footnotes[f"only in {results}"] == "last"


def test_experiments_are_compared_in_one_folder(spec: Path, before: Path) -> None:
    other = spec.with_name("other.yaml")
    text = THREE.replace("  none: {model.position: none}\n", "")
    store_runs(other, before, f"{text}negligible: {{bleu: 3}}\n")
    compared = api.compare(spec, other, results=before)
    assert compared.negligible.bleu == 3, "the later experiment's"
    assert [row.names[0] for row in compared.rows] == ["baseline", "rms"]
    assert compared.unmatched == (["none"], [])
    assert [row.shifts["test.test.bleu"].method for row in compared.rows] == ["equal", "equal"]


def test_runs_of_other_hashes_are_found_by_name(before: Path, after: Path, spec: Path) -> None:
    spec.write_text(RENAMED, encoding="utf-8")  # neither folder has these runs
    compared = api.compare(before, after, spec)
    assert [row.name for row in compared.rows] == ["baseline", "rms", "none"]

    spec.write_text(THREE.replace("norm: rms", "norm: {name: rms, eps: 1e-4}"), encoding="utf-8")
    finish(spec, after, only=["rms"])
    rows = {row.name: row for row in api.compare(before, after, spec).rows}
    assert rows["rms"].matched_by == "name"
    assert rows["rms"].spec == {"model.norm.eps": (1e-6, 1e-4)}


def test_a_folder_may_hold_several_specs_under_one_name(
    before: Path, after: Path, spec: Path
) -> None:
    finish(spec, after, ["training.steps=9"], [1], ["none"])
    compared = api.compare(before, after)
    assert len(compared.rows) == 3
    assert compared.unmatched[1] == ["baseline (2)", "none (2)"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_row_that_diverged_with_some_seeds_has_no_interval(
    side: str, before: Path, after: Path, spec: Path
) -> None:
    def diverge(record: dict[str, Any]) -> None:
        if record["seed"] == 3:
            record.update(status="diverged", test={}, dev={})

    change({"before": before, "after": after}[side], "rms", diverge)
    compared = api.compare(before, after, spec)
    assert compared.rows[2].shifts == {}
    assert compared.rows[2].samples["test.test.bleu"][0].n > 1
    assert "rms: without an interval" in compared.table().conclusion
    assert compared.rows[1].shifts["test.test.bleu"].method == "equal"


@pytest.fixture
def moved(before: Path, after: Path, spec: Path) -> api.Compared:
    """Two rows have moved, one of which lacks a seed; their intervals hold together."""

    def edit(record: dict[str, Any]) -> None:
        record["test"]["test"]["bleu"] += record["seed"] / 10
        record["test"]["test"]["nll"] += record["seed"] / 100
        if (record["variant"], record["seed"]) == ("rms", 3):
            record.update(status="failed", test={}, dev={})

    for row in ("none", "rms"):
        change(after, row, edit)
    return api.compare(before, after, spec)


def test_the_table_has_the_means_and_the_intervals_that_hold_together(moved: api.Compared) -> None:
    table, row = moved.table(), moved.rows[2]
    assert notes(moved)["rms"] == "3 done → 2 done, 1 failed"
    both = [table.column(f"test.test.bleu.{side}")[2].value for side in ("before", "after")]
    assert both == [f"{sample.mean:.1f}" for sample in row.samples["test.test.bleu"]]
    for metric, decimals in (("test.test.bleu", 1), ("test.test.nll", 3)):
        shift = row.shifts[metric]
        cells = [table.column(f"{metric}.difference{end}")[2] for end in ("", ".interval")]
        ends = interval_text(shift.simultaneous, decimals)
        assert [cell.value for cell in cells] == [signed(shift.estimate, decimals), ends]
        assert ends != interval_text(shift.single, decimals)


def test_the_formats_hold_the_same_numbers(moved: api.Compared) -> None:
    plain = json.loads(moved.text("json"))
    lines = list(csv.DictReader(io.StringIO(moved.text("csv"))))
    for row, as_json in zip(moved.rows, plain["rows"], strict=True):
        own = [line for line in lines if line["after"] == row.names[1]]
        assert [line["metric"] for line in own] == list(row.samples)
        for line in own:
            for side, sample in zip(("before", "after"), row.samples[line["metric"]], strict=True):
                assert float(line[f"mean.{side}"]) == sample.mean
                assert int(line[f"n.{side}"]) == sample.n
            shift = row.shifts.get(line["metric"])
            verdict = moved.outcome(row, line["metric"])
            assert line["verdict"] == (verdict or "")
            assert as_json["verdicts"].get(line["metric"]) == verdict
            assert line["difference"] == (str(shift.estimate) if shift else "")
            if shift and shift.simultaneous and shift.single:
                written = [json.loads(line[name]) for name in ("pairs", "se", "df")]
                assert written == [shift.n, shift.standard_error, shift.df]
                ends = [float(line[f"single.{end}"]) for end in ("low", "high")]
                assert ends == [shift.single.low, shift.single.high]
                high = shift.simultaneous.high
                assert float(line["simultaneous.high"]) == high
                assert as_json["shifts"][line["metric"]]["simultaneous"]["high"] == high
    for form in ("terminal", "markdown"):
        text = moved.text(form)
        for cells in moved.table().lines:
            assert all(cell.value in text for cell in cells.cells)
    first = next(line for line in moved.text("terminal", 100).splitlines() if "ΔBLEU" in line)
    assert all(word in first for word in ("before", "after", "ΔBLEU", "95% CI", "verdict"))


def test_the_sentences_that_differ_most_are_shown(before: Path, after: Path, spec: Path) -> None:
    choice = Choice(name="synthetic", options={"size": 1000})
    texts = build(Corpus, choice, at="corpus").load().tests["test"]
    for results in (before, after):
        for path in results.glob("runs/*/record.json"):
            record = Store(results).load(path.parent.name) or {}
            lines = list(texts.tgt)
            if results == after and (record["variant"], record["seed"]) == ("rms", 2):
                lines[4], lines[7] = lines[4] + " so", "nothing"
            text = "".join(f"{line}\n" for line in lines)
            (path.parent / "hypotheses.test.txt").write_text(text, encoding="utf-8")
    sentences = api.compare(before, after, spec).sentences
    assert (sentences.n, sentences.n_differing) == (9 * len(texts.tgt), 2)
    first, second = sentences.most
    assert (first.row, first.seed, first.line, second.line) == ("rms", 2, 8, 5)
    assert first.translations == (texts.tgt[7], "nothing")
    assert first.scores[0] == pytest.approx(100)
    change(after, "none", lambda record: record.pop("corpus"))  # as of a run that failed at once
    assert api.compare(before, after, spec).sentences.n_differing == 2
    text = api.compare(before, after, spec, n_sentences=1).text("markdown")
    assert f"2 of {sentences.n} differ; most by chrF:" in text
    assert texts.src[7] in text
    assert texts.src[4] not in text


def test_why_no_translations_are_compared_is_said(before: Path, after: Path, spec: Path) -> None:
    def note() -> str:
        compared = api.compare(before, after, spec)
        assert f"Translations: {compared.sentences.note}." in compared.text("terminal")
        return compared.sentences.note

    assert note() == "not compared, for no pair of runs has kept them"
    for row in ("baseline", "none", "rms"):
        change(after, row, lambda record: record["corpus"].update(fingerprint="other" * 3))
    assert note() == "not compared, for the corpora differ"
    for row in ("baseline", "none", "rms"):
        change(after, row, lambda record: record.update(status="failed", test={}, dev={}))
    assert note() == "not compared, for no row is tested on both sides"
    compared = api.compare(before, after, spec)
    assert compared.table().conclusion == "No row has been tested on both sides."


def test_two_commits_are_compared_by_seed(repository: Path, spec: Path) -> None:
    compared = api.compare("pe@HEAD~1", f"{spec}@HEAD", results=repository)
    bleu = "test.test.bleu"
    assert [row.matched_by for row in compared.rows] == ["changes"] * 3
    assert [row.shifts[bleu].method for row in compared.rows] == ["equal", "equal", "paired"]
    assert compared.rows[2].shifts[bleu].estimate == pytest.approx(1.8)
    assert "feedfeedfeed (3 runs)" in notes(compared)["commit"]
    assert "tables hold none" in compared.text("terminal")


def test_a_commit_is_compared_with_stored_runs(repository: Path, spec: Path, after: Path) -> None:
    compared = api.compare("pe@HEAD", after, spec, results=repository)
    assert {row.shifts["test.test.bleu"].method for row in compared.rows} == {"equal"}


def test_a_commit_without_values_by_seed_has_means(repository: Path) -> None:
    _git(repository, "rm", "-q", "pe/seeds.csv")
    _git(repository, "commit", "-qm", "means")
    compared = api.compare("pe@HEAD~2", "pe@HEAD", results=repository)
    shifts = [row.shifts["test.test.bleu"] for row in compared.rows]
    assert [shift.method for shift in shifts] == ["equal", "equal", "unpaired"]
    assert shifts[2].estimate == pytest.approx(1.8)


def test_rows_that_diverged_have_no_interval_in_tables_either(
    repository: Path, spec: Path, after: Path
) -> None:
    def diverge(record: dict[str, Any]) -> None:
        if record["seed"] == 3:
            record.update(status="diverged", test={}, dev={})

    change(after, "rms", diverge)
    write_tables(api.report(spec, results=after).table, repository / "pe")
    _git(repository, "add", ".")
    _git(repository, "commit", "-qm", "diverged")
    _git(repository, "rm", "-q", "pe/seeds.csv")
    _git(repository, "commit", "-qm", "means")
    for commit in ("HEAD~1", "HEAD"):
        row = api.compare("pe@HEAD~2", f"pe@{commit}", results=repository).rows[2]
        assert row.outcomes == ({"done": 3}, {"done": 2, "diverged": 1})
        assert row.samples["test.test.bleu"][1].n == 2
        assert row.shifts == {}


def test_refusals_say_what_to_do(
    repository: Path, before: Path, spec: Path, tmp_path: Path
) -> None:
    refused: list[tuple[tuple[str | Path, ...], type[Exception], str]] = [
        ((tmp_path, before), SpecError, "no folder 'runs'"),
        (("pe@nothing", "pe@HEAD"), SpecError, "has no commit 'nothing'"),
        (("other@HEAD", "pe@HEAD"), StoreError, r"has no .*other/table.csv; commit the tables"),
        ((before, before, "heads"), StoreError, "holds no run of heads"),
        ((spec, spec), StoreError, "holds no run of pe; `ablate run"),
    ]
    for arguments, error, message in refused:
        with pytest.raises(error, match=message):
            api.compare(*map(str, arguments), results=repository)


def test_a_refusal_names_a_command_for_a_shell(spec: Path, tmp_path: Path) -> None:
    spaced = str(spec.rename(spec.with_name("my pe.yaml")))
    with pytest.raises(StoreError, match=rf"`ablate run '{re.escape(spaced)}'` makes them"):
        api.compare(spaced, spaced, results=tmp_path / "none")


def test_what_has_no_row_in_common_is_refused(before: Path, spec: Path, tmp_path: Path) -> None:
    other = THREE.partition("variants:")[0].replace("steps: 6", "steps: 7")
    results = store_runs(spec.with_name("other.yaml"), tmp_path / "other", other)
    change(results, "baseline", lambda record: record.update(variant="x"))
    with pytest.raises(StoreError, match=r"no row in common, .*: the rows are baseline, .*; and x"):
        api.compare(before, results)


def test_the_command_prints_or_writes(before: Path, after: Path, spec: Path) -> None:
    runner, arguments = CliRunner(), ["compare", str(before), str(after), str(spec)]
    printed = runner.invoke(app, arguments, env={"COLUMNS": "100"})
    assert printed.exit_code == 0, printed.output
    assert "ΔBLEU" in printed.stdout
    file = spec.with_suffix(".json")
    assert runner.invoke(app, [*arguments, "--output", str(file)]).exit_code == 0
    assert json.loads(file.read_text("utf-8"))["labels"] == [str(before), str(after)]
    for option, value, reason in [
        ("--output", "x.tex", "known: .txt, .md, .csv, .json"),
        ("--format", "latex", "no format is called 'latex'"),
    ]:
        refused = runner.invoke(app, [*arguments, option, value])
        assert (refused.exit_code, reason in refused.output) == (2, True)
