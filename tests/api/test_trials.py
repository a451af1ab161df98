"""Some rows or seeds, or overrides: where their tables go, and what they say of themselves."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from shutil import copytree

import pytest
from matplotlib.figure import Figure

from ablate import api
from ablate.config import shipped
from ablate.errors import DataError, StoreError
from ablate.registry import lookup
from ablate.registry.table import TABLE
from ablate.report import FORMATS, Table, figures, render
from ablate.report.figures import Drawing
from ablate.runner.provenance import code_digest, hardware, versions
from ablate.store import Store
from tests.made_up_runs import EXPERIMENT, finish

STEPS = "training.steps=3"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.chdir(folder)
    return Path("pe.yaml")


def run(path: Path, *overrides: str, **options: object) -> api.Outcome:
    only = options.pop("only", ())
    options = {"figures": False} | options
    return api.run(path, api.RunOptions(device="cpu", overrides=overrides, **options), only=only)  # type: ignore[arg-type]


def test_a_trial_leaves_the_table_of_the_whole_experiment(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Path("results")
    for overrides, seeds, only in [((), None, ()), ((STEPS,), [1], ["none"])]:
        finish(path, results, overrides, seeds, only)
    whole = run(path)
    before = (results / "pe" / "table.md").read_text(encoding="utf-8")
    assert whole.table.trial == ()
    trial = run(path, STEPS, seeds=[1], only=["none"])
    assert (results / "pe" / "table.md").read_text(encoding="utf-8") == before
    folder = results / "pe" / "trials" / "training.steps=3_none_seeds=1-"
    [trial_folder] = (results / "pe" / "trials").iterdir()
    assert str(trial_folder).startswith(str(folder))
    assert "trial" in (trial_folder / "table.md").read_text(encoding="utf-8")
    assert str(trial_folder) in capsys.readouterr().err
    assert trial.table.trial == (
        "the baseline has training.steps=3",
        "1 of 3 rows left out (rms)",
        "seeds 1 in place of 1, 2",
    )


def test_no_folder_is_named_for_tables_that_cannot_be_written(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(path, Path("results"), (STEPS,))
    Path("results/pe").mkdir()
    Path("results/pe/trials").touch()  # where a folder would have to be
    assert run(path, STEPS).exit_status == 1
    error = capsys.readouterr().err
    assert "the table is printed, but not kept" in error
    assert "its tables are in" not in error


def test_a_damaged_run_of_a_baseline_that_is_not_asked_for_stays(path: Path) -> None:
    store = Store(Path("results"))
    selection = finish(path, store.results)
    record = run(path).records["baseline", 1]
    store.save({**record, "files": {"tokenizer.json": {"bytes": 9, "sha256": "of another"}}})
    (store.path(record["hash"]) / "tokenizer.json").write_text("damaged", encoding="utf-8")
    assert len(run(path, only=["none"]).records) == 2 * len(selection.experiment.seeds)
    assert store.load(record["hash"]) is not None


@pytest.mark.figures
def test_figures_are_of_the_table_and_drawn_anew_when_it_shows_other_numbers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, store = list[int](), Store(Path("results"))

    def drawings(table: Table) -> list[Drawing]:
        assert table.details is not None
        drawn.append(len(table.details.records))
        return []

    monkeypatch.setattr(figures, "drawings", drawings)
    for more in ("", "  scale: {model.norm: scale}\n", "negligible: {bleu: 5}\n"):
        path.write_text(EXPERIMENT + more, encoding="utf-8")
        finish(path, store.results)  # by another experiment
        for _ in range(2):
            outcome = run(path, figures=True)
    assert drawn == [6, 8, 6]
    record = outcome.records["rms", 1]
    store.save({**record, "speed": {**record["speed"], "train_tokens_per_second": 9.0}})
    run(path, figures=True)
    assert drawn == [6, 8, 6, 6]


@pytest.mark.figures
def test_a_figure_goes_when_the_numbers_no_longer_have_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [["costs", "curves"], ["costs"]]

    def drawings(_: Table) -> list[Drawing]:
        return [Drawing(name, name, Figure(), []) for name in names.pop(0)]

    monkeypatch.setattr(figures, "drawings", drawings)
    finish(path, Path("results"))
    folder = Path("results/pe")
    run(path, figures=True)
    (folder / "own.svg").write_text("ours", encoding="utf-8")
    monkeypatch.setattr(import_module("ablate.api.run"), "__version__", "9.0")  # which draws anew
    run(path, figures=True)
    left = {file.name for file in folder.iterdir()}
    assert {f"costs.{kind}" for kind in ("svg", "png", "csv")} <= left
    assert "own.svg" in left
    assert not any(name.startswith("curves") for name in left)


def test_every_text_says_what_a_trial_leaves_out(path: Path) -> None:
    finish(path, Path("results"), (STEPS,), [1], ["none"])
    table = run(path, STEPS, seeds=[1], only=["none"]).table
    texts = {form: render(table, form) for form in FORMATS if form != "html"}
    for form, text in texts.items():
        plain = " ".join(text.replace("\\_", "_").split())
        assert [line for line in table.trial if line not in plain] == [], form
    rows = csv.DictReader(io.StringIO(texts["csv"]))
    assert all("training.steps=3" in row["trial"] for row in rows)
    assert json.loads(texts["json"])["trial"] == list(table.trial)


def test_trials_do_not_replace_each_other(path: Path) -> None:
    trials = [((STEPS,), None, ()), ((), [2], ()), ((), [1], ()), ((), None, ["rms"])]
    for overrides, seeds, only in trials:
        finish(path, Path("results"), overrides, seeds, only)
        run(path, *overrides, seeds=seeds, only=only)
    assert len([*Path("results/pe/trials").iterdir()]) == len(trials)
    assert not Path("results/pe/table.md").exists()


def test_a_page_names_a_shipped_experiment_as_others_find_it(tmp_path: Path) -> None:
    file = shipped.find("norm")
    assert file is not None
    finish(file, tmp_path, seeds=[1, 2], only=["rms"])
    for spec, name in (("norm", "norm"), (os.path.relpath(file), os.path.relpath(file))):
        table = api.report(spec, seeds=[1, 2], results=tmp_path).table
        assert table.details is not None
        assert table.details.arguments == f"{name} --seeds 1,2"


def test_a_report_takes_seeds_rows_and_overrides(path: Path) -> None:
    finish(path, Path("results"), (STEPS,), [1], ["none"])
    actual = api.report(path, seeds=[1], only=["none"], overrides=[STEPS])
    assert [line.summary.name for line in actual.table.lines] == ["baseline", "none"]
    assert all(line.summary.count("done") == 1 for line in actual.table.lines)


def test_a_report_without_runs_says_under_which_overrides_some_are(path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"no run of pe that has ended; `ablate run pe.yaml` makes them"
    ):
        api.report(path)
    finish(path, Path("results"), (STEPS, "model.norm={name: layer, eps: 1e-3}"), [1], ["none"])
    expected = "give --set model.norm.eps=0.001 --set training.steps=3 --seeds 1"
    with pytest.raises(StoreError, match=expected):
        api.report(path)
    finish(path, Path("results"), (), [7])
    with pytest.raises(StoreError, match="what the file says and seeds 7: give --seeds 7"):
        api.report(path)


def test_a_report_without_runs_names_the_command_that_makes_just_these(path: Path) -> None:
    spaced = path.rename("my pe.yaml")
    with pytest.raises(StoreError, match=r"; `ablate run 'my pe\.yaml' --seeds 7,8` makes them"):
        api.report(spaced, seeds=[7, 8])
    with pytest.raises(StoreError, match="`ablate run 'width#wide' --seeds 7` makes them"):
        api.report("width#wide", seeds=[7], results="nothing")


def test_missing_runs_that_are_stored_with_other_hashes_are_said_to_be(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(Path("results"))
    finish(path, store.results)
    remark = (
        "missing runs: the store holds 2 of 2 (rms) under other hashes: the text, a part or a "
        "plugin has another version"
    )

    def are_said_to_be() -> list[bool]:
        api.report(path)
        planned = " ".join(api.plan(path, device="cpu").stale)
        return [remark in capsys.readouterr().err, remark in planned]

    assert are_said_to_be() == [False, False]
    entry = lookup("norm", "rms")  # as an upgrade has it
    monkeypatch.setitem(TABLE["norm"], "rms", replace(entry, version=entry.version + 1))
    assert are_said_to_be() == [True, True]
    finish(path, store.results)
    assert are_said_to_be() == [False, False]


def with_own_text(path: Path) -> None:
    """Let the experiment train on files of its folder, the working directory."""
    names = ("train", "dev", "test")
    for name in names:
        for code in ("en", "de"):
            Path(f"{name}.{code}").write_text(f"{code} a b\n" * 9, encoding="utf-8")
    splits = {name: f"[{name}.en, {name}.de]" for name in names}
    own = "{name: files, src: en, tgt: de, train: %(train)s, dev: %(dev)s, tests: {t: %(test)s}}"
    corpus = own % splits
    path.write_text(EXPERIMENT.replace("{name: synthetic, size: 1000}", corpus), encoding="utf-8")


@pytest.mark.parametrize("teacher", ["", "teacher: train.de, "])
def test_runs_on_the_same_text_are_those_of_the_file_in_any_working_directory(
    teacher: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_own_text(path)
    text = path.read_text(encoding="utf-8").replace("training: {", f"training: {{{teacher}")
    path.write_text(text, encoding="utf-8")
    finish(path, Path("results"))
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    message = "it holds runs with what the file says and seeds 1, 2: give --seeds 1,2;"
    with pytest.raises(StoreError, match=message):
        api.report(f"../{path}", seeds=[7], results="../results")


def test_a_report_says_that_what_is_stored_has_another_content(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_own_text(path)
    finish(path, Path("results"))
    file = Path("test.de")
    content = file.read_text(encoding="utf-8")
    file.write_text(content + content, encoding="utf-8")
    Path("test.en").write_text("en a b\n" * 18, encoding="utf-8")
    message = "what the file says and seeds 1, 2 that have other hashes: the corpus, .* has changed"
    with pytest.raises(StoreError, match=message):
        api.report(path)
    file.unlink()
    missing = r"content of the corpus 'files' is not known here.*: there is no such file.*test\.de"
    for read in (lambda: api.report(path), lambda: api.compare("pe.yaml", "pe.yaml")):
        with pytest.raises(DataError, match=missing):
            read()
    copy = copytree(".", Path("..", "copy"))  # as whoever got the files and the runs
    monkeypatch.chdir(copy)
    Path("test.de").write_text(content, encoding="utf-8")
    Path("test.en").write_text("En a b\n" * 9, encoding="utf-8")
    with pytest.raises(StoreError, match=f"no run of copy/pe that has ended; it holds .*{message}"):
        api.report(path)


def test_a_report_says_which_runs_other_code_has_made(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(path, Path("results"))
    assert api.report(path).exit_status == 0
    remark = "6 of 6 runs (baseline, none and rms) were not made by this code on this machine"
    assert remark in " ".join(capsys.readouterr().err.split())
    store = Store(Path("results"))
    present = {"git": {"code": code_digest()}, "versions": versions(), "hardware": hardware("cpu")}
    for folder in (store.results / "runs").iterdir():
        store.save({**(store.read(folder.name) or {}), **present})
    api.report(path)
    assert capsys.readouterr().err == ""


def test_an_outcome_is_short_and_shows_its_table_in_a_notebook(path: Path) -> None:
    finish(path, Path("results"))
    outcome = api.report(path)
    assert repr(outcome) == "<Outcome of pe: 6 of 6 runs done, exit_status=0>"
    assert repr(outcome.table).startswith("<Table of pe: 3 rows, ")
    assert "| **baseline** |" in outcome._repr_markdown_()


def test_the_command_of_a_page_makes_the_baseline_that_rows_are_compared_with(path: Path) -> None:
    finish(path, Path("results"), only=["none"])
    for only in (["none"], ["baseline", "none"]):
        details = api.report(path, only=only).table.details
        assert details is not None
        assert details.arguments == "pe.yaml --only baseline --only none"
