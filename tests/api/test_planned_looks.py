"""``looks:`` from the file to the table: which runs are made, and what says so."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import api, config
from ablate.analysis.power import detectable, seeds_for
from ablate.analysis.sequential import chance, levels
from ablate.api.looks import at_look, with_early_runs
from ablate.api.selection import Records, RunLookup, Selection, key_of, select, stored
from ablate.cli.app import app
from ablate.config import MistakesError
from ablate.report import render
from ablate.report.figures import draw_differences
from ablate.store import Store
from tests import made_up_runs
from tests.report.made_up import notes

LOOKS = made_up_runs.EXPERIMENT.replace(
    "seeds: [1, 2]", "looks: [2, 4, 6]\nnegligible: {bleu: 1.7}"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pe.yaml"
    path.write_text(LOOKS, encoding="utf-8")
    return path


def selected(file: Path, seeds: tuple[int, ...] | None = None) -> Selection:
    lookup = RunLookup(Store(file.parent / "results"))
    return at_look(select(file, seeds=seeds, lookup=lookup), lookup)


def n_runs(selection: Selection) -> dict[str, int]:
    names = [run.variant for run in selection.runs]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def test_seeds_go_on_after_those_that_are_given(tmp_path: Path) -> None:
    for seeds, expected in (("", (1, 2, 3, 4, 5)), ("seeds: [7, 3]", (7, 3, 8, 9, 10))):
        (tmp_path / "x.yaml").write_text(f"{seeds}\nlooks: [2, 5]\n", encoding="utf-8")
        experiment = config.load(tmp_path / "x.yaml")
        assert (experiment.seeds, experiment.looks) == (expected, (2, 5))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("looks: [3, 3]", r"numbers of seeds ascend, as in \[3, 5, 8, 12\]; these are \[3, 3\]"),
        ("looks: [1, 3]", "looks"),
        ("looks: 3", "looks"),
        ("seeds: [1, 2, 3, 4]\nlooks: [2, 3]", "the last look is at 3 seeds, and there are 4"),
        ("variants: {a: {looks: [2, 3]}}", "'looks' is not for one row"),
    ],
)
def test_mistakes_are_named_at_their_place(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(MistakesError, match=reason):
        config.load(tmp_path / "x.yaml")


def test_the_runs_that_follow_are_decided_by_the_bleu_of_the_table(file: Path) -> None:
    made_up_runs.finish(file, file.parent / "results", has_files=True)
    by_default = selected(file).looks.n_seeds
    file.write_text(f"{LOOKS}metrics: [{{name: bleu, tokenize: char}}]\n", encoding="utf-8")
    results = api.report(file, results=file.parent / "results").table.results
    assert results is not None
    assert "tok:char" in results.signatures["bleu"]
    assert selected(file).looks.n_seeds == results.looks.n_seeds != by_default


def test_the_runs_of_a_look_are_planned_and_those_of_later_ones_are_not(file: Path) -> None:
    assert n_runs(selected(file)) == {"baseline": 2, "none": 2, "rms": 2}
    assert n_runs(selected(file, seeds=(4, 5, 6))) == {"baseline": 3, "none": 3, "rms": 3}
    plan = api.plan(file, results=file.parent / "results")
    assert (plan.looks, plan.n_looks, plan.decided) == ((2, 4, 6), 0, {})
    assert (
        "these are the runs up to look 1 of 3, at 2 seeds: 0 of 2 rows are decided; at most 12 "
        "runs follow"
    ) in plan.remarks()
    made_up_runs.finish(file, file.parent / "results", seeds=(1, 2))
    plan = api.plan(file, results=file.parent / "results")
    assert plan.decided == {"rms": 2}
    assert [len(row.runs) for row in plan.rows] == [4, 4, 2]
    assert plan.n_expected is not None
    assert 0 <= plan.n_expected < 4
    expected = f"at most 4 runs follow ({plan.n_expected:.0f} are to be expected)"
    assert f"1 of 2 rows are decided; {expected}" in " ".join(plan.remarks())
    made_up_runs.finish(file, file.parent / "results", seeds=(3, 4))
    made_up_runs.finish(file, file.parent / "results", seeds=(5, 6))
    plan = api.plan(file, results=file.parent / "results")
    assert plan.n_missing == 0
    assert plan.decided == {"none": 4, "rms": 2}
    assert "all looks are over: 2 of 2 rows decided" in plan.remarks()
    assert [len(row.runs) for row in plan.rows] == [4, 4, 2]


def test_a_run_says_what_each_look_has_decided(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = file.parent / "results"

    def complete(selection: Selection, _: api.RunOptions) -> tuple[Records, bool]:
        made_up_runs.finish(file, results, seeds=sorted({run.seed for run in selection.runs}))
        return stored(selection, RunLookup(Store(results))), False

    monkeypatch.setattr(import_module("ablate.api.run"), "complete", complete)
    api.run(file, api.RunOptions(device="cpu", figures=False, results=results))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("look at")]
    assert lines == [
        "look at 2 seeds: 1 of 2 rows decided, 0 given up; 1 row and the baseline go on to 4 seeds"
    ]


def test_a_plan_says_what_its_seeds_can_find(tmp_path: Path) -> None:
    file = made_up_runs.finished(tmp_path)
    plan = api.plan(file, results=tmp_path / "results")
    table = api.report(file, results=tmp_path / "results").table
    assert table.results is not None
    compared = table.results.comparison("test.test.bleu")
    assert compared is not None
    power = plan.power
    assert power is not None
    assert (power.sd, power.df, power.n_seeds) == (compared.sd, compared.df, 2)
    assert power.detectable == pytest.approx(detectable(power.sd, 2, 2))
    assert power.detectable < 1
    assert power.seeds_for == {0.5: seeds_for(0.5, power.sd, 2)}
    (line,) = (line for line in plan.remarks() if "a run's error" in line)
    assert line == (
        f"a run's error is ± {power.sd:.2f} BLEU (2 degrees of freedom): with a probability of "
        f"80%, 2 seeds find {power.detectable:.2g} BLEU; 0.5 BLEU takes 3 seeds"
    )
    assert api.plan(file, results=tmp_path / "none").power is None
    large = replace(plan, power=replace(power, detectable=132.4))
    assert "2 seeds find 130 BLEU" in " ".join(large.remarks())
    rows = tuple(replace(row, seconds_per_run=3.6e6) for row in plan.rows)
    assert "all runs together: 6,000 cpu hours" in " ".join(replace(plan, rows=rows).remarks())


def test_what_a_plan_of_looks_can_find_is_by_the_intervals_of_the_last(file: Path) -> None:
    made_up_runs.finish(file, file.parent / "results", seeds=(1, 2))
    power = api.plan(file, results=file.parent / "results").power
    assert power is not None
    assert power.n_seeds == 6
    level = levels((2, 4, 6), 2)[-1]
    assert power.detectable == pytest.approx(detectable(power.sd, 2, 6, level))


def test_seeds_of_a_table_and_of_a_command_have_no_looks(file: Path) -> None:
    results = file.parent / "results"
    made_up_runs.finish(file, results, seeds=(1, 2, 3))
    table = api.report(file, seeds=(1, 2, 3), results=results).table
    assert "looks" not in notes(table)
    assert table.results is not None
    assert not table.results.looks.planned


def test_all_seeds_by_hand_make_a_trial_beside_the_table_of_looks(file: Path) -> None:
    results = file.parent / "results"
    made_up_runs.finish(file, results)
    options = api.RunOptions(device="cpu", figures=False, results=results)
    of_looks = api.run(file, options)
    file_of_table = results / file.parent.name / "pe" / "table.md"
    before = file_of_table.read_text(encoding="utf-8")
    by_hand = api.run(file, replace(options, seeds=range(1, 7)))
    assert of_looks.table.trial == ()
    assert by_hand.table.trial == ("seeds 1, 2, 3, 4, 5, 6 in place of looks at 2, 4, 6",)
    assert file_of_table.read_text(encoding="utf-8") == before
    assert by_hand.table.details is not None
    assert by_hand.table.details.arguments == f"{file} --seeds 1,2,3,4,5,6"


def test_figures_show_the_intervals_of_looks_that_were_changed(file: Path) -> None:
    """The runs are those that are shown already."""
    results = file.parent / "results"
    made_up_runs.finish(file, results)
    options = api.RunOptions(device="cpu", probes=False, results=results)
    api.run(file, options, only=["none"])
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("looks: [2, 4, 6]", "looks: [2, 3, 4, 6]"), encoding="utf-8")
    table = api.run(file, options, only=["none"]).table
    (numbers,) = results.glob("**/differences.csv")
    assert table.results is not None
    drawing = draw_differences(table.results)
    assert drawing is not None
    assert "3:[" in numbers.read_text(encoding="utf-8")
    assert "3:[" in str(drawing.numbers[0]["looks"])


def test_rows_that_are_still_to_be_tuned_are_planned_up_to_the_first_look(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    tune = "tune: {training.schedule.lr: [1e-3, 2e-3], seeds: [11]}\n"
    file.write_text(text.replace("variants:", f"{tune}variants:"), encoding="utf-8")
    plan = api.plan(file, results=file.parent / "results")
    assert [(row.pending, len(row.runs), len(row.tuning)) for row in plan.rows] == [
        (("training.schedule.lr",), 2, 2)
    ] * 3
    assert "at most 12 runs follow" in " ".join(plan.remarks())


def test_a_plan_of_some_rows_counts_the_looks_of_these(file: Path) -> None:
    plan = api.plan(file, only=["none"], results=file.parent / "results")
    assert (
        "these are the runs up to look 1 of 3, at 2 seeds: 0 of 1 rows are decided; at most 4 "
        "runs follow"
    ) in plan.remarks()


def test_what_is_stored_of_later_looks_is_neither_shown_nor_garbage(file: Path) -> None:
    results = file.parent / "results"
    made_up_runs.finish(file, results)
    outcome = api.report(file, results=results)
    assert "pe: 10 of at most 18 runs done, " in repr(outcome)
    table = outcome.table
    assert table.results is not None
    assert [len(row.outcomes) for row in table.results.summaries] == [4, 4, 2]
    garbage = CliRunner().invoke(app, ["runs", "gc", str(file), "--results", str(results)])
    assert "0 runs" in garbage.output
    written = json.loads(
        (
            CliRunner().invoke(
                app, ["report", str(file), "--results", str(results), "--format", "json"]
            )
        ).stdout
    )
    assert [row["decided_at"] for row in written["rows"]] == [None, 4, 2]
    assert written["looks"] == [2, 4, 6]


@pytest.mark.e2e
def test_a_run_goes_from_look_to_look_and_on_where_it_stopped(file: Path) -> None:
    options = api.RunOptions(
        device="cpu", figures=False, probes=False, results=file.parent / "results"
    )
    outcome = api.run(file, options)
    looks = api.report(file, results=options.results).table.results.looks  # type: ignore[union-attr]
    assert len(outcome.records) == sum(looks.n_seeds.values())
    made = {
        path.parent.name: path.read_bytes()
        for path in options.store.results.glob("runs/*/record.json")
    }
    last = max(options.store.results.glob("runs/*"), key=lambda path: path.stat().st_mtime)
    (last / "record.json").unlink()
    again = api.run(file, options)
    assert {r["hash"] for r in again.records.values()} == set(made)
    assert again.table.conclusion == outcome.table.conclusion
    assert notes(again.table)["looks"] == notes(outcome.table)["looks"]


def test_a_row_that_is_decided_early_has_an_estimate_without_bias(tmp_path: Path) -> None:
    file = tmp_path / "pe.yaml"
    file.write_text(LOOKS.replace("bleu: 1.7", "bleu: 0.01"), encoding="utf-8")
    made_up_runs.finish(file, tmp_path / "results", seeds=(1, 2, 3, 4))
    records = {
        path: json.loads(path.read_text()) for path in tmp_path.glob("results/runs/*/*.json")
    }
    store = Store(tmp_path / "results")
    for record in records.values():
        if record["variant"] == "none":
            record["test"]["test"]["bleu"] -= (8, 12, 10, 10)[record["seed"] - 1]
            store.save({key: value for key, value in record.items() if key != "digest"})
    words = ["report", str(file), "--results", str(tmp_path / "results"), "--format", "json"]
    content = json.loads(CliRunner().invoke(app, words).stdout)
    (none,) = (row for row in content["rows"] if row["name"] == "none")
    difference = none["differences"]["test.test.bleu"]
    assert difference["verdict"] == "worse"
    assert none["decided_at"] == 4
    assert difference["estimate"] < difference["median_unbiased"] < 0
    (rms,) = (row for row in content["rows"] if row["name"] == "rms")
    assert rms["differences"]["test.test.bleu"]["median_unbiased"] is None
    table = api.report(file, results=tmp_path / "results").table
    assert table.results is not None
    assert "median_unbiased" not in render(table, "csv")
    assert "median_unbiased" in render(table, "csv", columns=["all"])
    assert "the JSON, and the CSV of all columns, have one" in notes(table)["looks"]
    drawing = draw_differences(table.results)
    assert drawing is not None
    of_none = [line["looks"] for line in drawing.numbers if line["row"] == "none"]
    assert of_none[0].startswith("2:[")


def test_a_row_that_no_look_will_decide_is_given_up(tmp_path: Path) -> None:
    file, results = tmp_path / "pe.yaml", tmp_path / "results"
    file.write_text(LOOKS.replace("bleu: 1.7", "bleu: 0.01"), encoding="utf-8")
    made_up_runs.finish(file, results, seeds=(1, 2, 3, 4))
    store = Store(results)
    of_run = {}
    for path in tmp_path.glob("results/runs/*/record.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        of_run[record["variant"], record["seed"]] = record
    for row, errors in {"none": (-3, 3, -3, 3), "rms": (-20, 20, 20, 20)}.items():
        for seed, error in enumerate(errors, start=1):
            record = {k: v for k, v in of_run[row, seed].items() if k != "digest"}
            baseline = of_run["baseline", seed]["test"]["test"]["bleu"]
            record["test"]["test"]["bleu"] = baseline + error
            store.save(record)
    plan = api.plan(file, results=results)
    assert plan.given_up == {"none": 4}
    assert plan.decided == {}
    assert [len(row.runs) for row in plan.rows] == [6, 4, 6]
    (line,) = (line for line in plan.remarks() if "these are the runs up to" in line)
    assert "0 of 2 rows are decided, 1 given up; at most 0 runs follow (0 are" in line
    for decided, n in (({"rms": 6}, 2), ({}, 3)):
        over = f"all looks are over: {len(decided)} of 2 rows decided, 1 given up"
        assert over in replace(plan, decided=decided, n_looks=n).remarks()
    table = api.report(file, results=results).table
    given_up = (
        "given up, as 6 seeds would decide them with a probability below 5%, with 4 seeds: “none”"
    )
    assert given_up in notes(table)["looks"]
    assert table.results is not None
    difference = table.results.difference("none", table.results.bleu)
    assert difference is not None
    assert difference.simultaneous is not None
    assert difference.n == 4


def test_expected_runs_are_those_that_chances_leave(tmp_path: Path) -> None:
    """One row after the first of three looks: it and the baseline go on if the second is open."""
    file, results = tmp_path / "pe.yaml", tmp_path / "results"
    file.write_text(f"{LOOKS.partition('variants')[0]}variants:\n  rms: {{model.norm: rms}}\n")
    made_up_runs.finish(file, results, seeds=(1, 2))
    looks = selected(file).looks
    difference = looks.comparisons["test.test.bleu"].differences["rms"]
    assert difference.estimate is not None
    assert difference.standard_error is not None
    second = chance(difference.estimate, difference.standard_error, (2, 4, 6), 2, 1, 1.7, 4)
    assert looks.n_expected == pytest.approx(2 * 2 * (1 - second))


def test_idle_workers_begin_the_next_look(file: Path) -> None:
    """The first look has six runs, the second as many more."""
    selection = selected(file)

    def early(n_at_once: int, n_done: int = 0) -> list[tuple[str, int]]:
        done = {key_of(run): {"status": "done"} for run in selection.runs[:n_done]}
        runs = with_early_runs(selection, done, n_at_once)
        assert runs.runs[: len(selection.runs)] == selection.runs
        assert runs.tabulated[-len(runs.runs) :] == runs.runs
        return [key_of(run) for run in runs.runs[len(selection.runs) :]]

    assert early(1) == early(2) == early(6) == []
    assert early(4) == [("baseline", 3), ("baseline", 4)]
    assert early(2, n_done=3) == [("baseline", 3)]
    failed = {key_of(run): {"status": "failed"} for run in selection.runs}
    assert len(with_early_runs(selection, failed, 4).runs) == 8
    assert early(4, n_done=6) == []
    assert early(11) == [(row, seed) for row in ("baseline", "none") for seed in (3, 4)] + [
        ("rms", 3)
    ]
    assert early(99)[-1] == ("rms", 4)


def test_no_row_that_is_closed_begins_early(file: Path) -> None:
    made_up_runs.finish(file, file.parent / "results", seeds=(1, 2))
    selection = selected(file)  # rms is decided
    runs = with_early_runs(selection, {}, 64).runs[len(selection.runs) :]
    assert [key_of(run) for run in runs] == [
        (row, seed) for row in ("baseline", "none") for seed in (5, 6)
    ]
    whole = selected(file, seeds=(1, 2, 3))
    assert with_early_runs(whole, {}, 64) == whole
    lookup = RunLookup(Store(file.parent / "results"))
    some = at_look(select(file, only=("none",), lookup=lookup), lookup)
    early = with_early_runs(some, {}, 64)
    added = [("none", seed) for seed in (5, 6)]
    assert [key_of(run) for run in early.runs[len(some.runs) :]] == added
    assert [key_of(run) for run in early.tabulated[len(some.tabulated) :]] == added
    assert len(some.tabulated) > len(some.runs)


@pytest.mark.e2e
def test_runs_that_were_begun_early_are_those_of_their_look(tmp_path: Path) -> None:
    spec = tmp_path / "pe.yaml"
    spec.write_text(LOOKS.replace("[2, 4, 6]", "[2, 3]").replace("bleu: 1.7", "bleu: 99"))
    words = ["run", str(spec), "--device", "cpu", "--no-probe", "--jobs", "4", "--json"]
    tables = []
    for jobs in ("1", "4"):
        words[-2] = jobs
        folder = str(tmp_path / f"results{jobs}")
        done = CliRunner().invoke(app, [*words, "--results", folder])
        assert done.exit_code == 0, done.output
        tables.append(json.loads(done.stdout)["rows"])
    one, four = (
        {row["name"]: row["metrics"]["test.test.bleu"]["values"] for row in rows} for rows in tables
    )
    assert one == four
    assert len([*tmp_path.glob("results1/runs/*/record.json")]) == 6
    assert len([*tmp_path.glob("results4/runs/*/record.json")]) == 8  # two of the second look


def test_rows_that_looks_have_decided_lack_no_runs_in_an_archive(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = file.parent / "results"
    made_up_runs.finish(file, results, seeds=(1, 2))
    made_up_runs.finish(file, results, seeds=(3, 4), only=["baseline", "none"])
    api.archive([file], file.parent / "a.tar", results=results)
    assert "rms:" not in capsys.readouterr().err
    page = render(api.report(file, results=results).table, "html")
    assert "3 rows, 2 to 4 seeds each" in page
    assert len(api.restore(file.parent / "a.tar", results=file.parent / "b").new) == 10
