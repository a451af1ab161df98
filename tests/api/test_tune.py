"""How tuning chooses what a table trains, from stored runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import ablate
from ablate import api, config, report
from ablate.analysis.power import seeds_for
from ablate.api import tune
from ablate.api.completion import RunOptions, opened
from ablate.api.plan import plan
from ablate.api.selection import (
    Records,
    RunLookup,
    Selection,
    select,
    stored,
    tasks,
    tuning_runs,
)
from ablate.api.tune import select_chosen
from ablate.config import Row, tuning_of
from ablate.config.runs import beyond
from ablate.errors import SpecError, StoreError
from ablate.report.values import TIMES
from ablate.runner.check import check
from ablate.runner.devices import Device
from ablate.store import Store
from tests.presets import ROOT
from tests.report.made_up import notes

TEXT = f"""\
extends: {ROOT / "presets/laptop_500.yaml"}
corpus: {{size: 240}}
model: {{n_layers: 1}}
seeds: [1, 2]
tune: {{training.schedule.lr: [1e-3, 2e-3, 4e-3], seeds: [8, 9]}}
variants:
  pre: {{model.residual: pre}}
"""
NLL = {"lr=0.001": (2.0, 2.1), "lr=0.002": (1.5, 1.9), "lr=0.004": (1.4, 1.8)}


class Bench:
    """An experiment whose tuning runs are made up."""

    def __init__(self, folder: Path, text: str = TEXT) -> None:
        self.spec, self.store = folder / "own.yaml", Store(folder / "results")
        self.spec.write_text(text)

    def tuned(
        self,
        nll: Mapping[str, Sequence[float | None]],
        *rows: str,
        engine: str = "eager",
    ) -> None:
        """Store the tuning runs of rows; None diverged."""
        tuning = tuning_of(config.load(self.spec))
        runs = tuning_runs(tuning, rows).runs
        todo = tasks(runs, Device("cpu"), self.store.results, engine=engine)
        for run, task in zip(runs, todo, strict=True):
            value = nll[run.variant.split()[1]][run.seed - 8]
            known: dict[str, Any] = {"dev": {"nll": value}} if value else {}
            self.store.save(task.record("done" if value else "diverged", **known))

    def row(self, name: str) -> Row:
        chosen = select(self.spec, lookup=RunLookup(self.store)).experiment
        return next(row for row in chosen.rows if row.name == name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_row_has_the_candidate_of_the_lowest_mean_loss_on_dev(bench: Bench) -> None:
    bench.tuned(NLL, "baseline")
    bench.tuned(NLL | {"lr=0.004": (1.3, None)}, "pre")
    assert bench.row("baseline").spec.training.schedule.options["lr"] == 4e-3
    assert bench.row("pre").spec.training.schedule.options["lr"] == 2e-3  # 4e-3 diverged once


def test_garbage_is_what_no_kind_of_machine_has_chosen(bench: Bench) -> None:
    bench.tuned(NLL, "baseline", "pre")
    bench.tuned(NLL | {"lr=0.001": (1.0, 1.0)}, "baseline", "pre", engine="cuda_graph")
    for engine, lr in (("eager", 4e-3), ("cuda_graph", 1e-3)):
        lookup = RunLookup(bench.store, "fp32", engine)
        selection = select(bench.spec, lookup=lookup)
        assert {run.spec.training.schedule.options["lr"] for run in selection.runs} == {lr}
        for task in tasks(selection.runs, Device("cpu"), bench.store.results, engine=engine):
            bench.store.save(task.record("done"))
    assert len(api.runs(bench.store.results)) == 2 * (12 + 4)
    assert api.collect_garbage(bench.store.results, [bench.spec], is_trial=True) == []


def test_hashes_are_those_of_the_values_that_were_chosen(bench: Bench) -> None:
    assert ablate.hashes(bench.spec, results=bench.store.results) == {}
    bench.tuned(NLL, "baseline", "pre")
    hashes = ablate.hashes(bench.spec, results=bench.store.results)
    assert list(hashes) == [("baseline", 1), ("baseline", 2), ("pre", 1), ("pre", 2)]


def test_what_is_chosen_changes_no_candidate(tmp_path: Path) -> None:
    """A part that was not chosen still has the options that the file gives it."""
    schedules = "tune: {training.schedule: [cosine, constant]"
    bench = Bench(
        tmp_path, TEXT.replace("tune: {training.schedule.lr: [1e-3, 2e-3, 4e-3]", schedules)
    )
    results = bench.store.results

    def hashes() -> list[list[str | None]]:
        rows = plan(bench.spec, device="cpu", results=results).rows
        return [[run.hash for run in row.tuning] for row in rows]

    before = hashes()
    bench.tuned({"schedule=cosine": (2.0, 2.0), "schedule=constant": (1.0, 1.0)}, "pre")
    assert bench.row("pre").spec.training.schedule.name == "constant"
    assert hashes() == before
    assert api.collect_garbage(results, [bench.spec], is_trial=True) == []


def test_the_first_of_equals_is_chosen(bench: Bench) -> None:
    bench.tuned(dict.fromkeys(NLL, (None, None)), "baseline")
    assert bench.row("baseline").spec.training.schedule.options["lr"] == 1e-3


EXTENDED = TEXT.replace("seeds: [8, 9]}", "seeds: [8, 9], extend: 2}")


def lrs_of(bench: Bench, row: str) -> list[float]:
    """Return the learning rates that a row tries, as far as that is known."""
    tuning = select(bench.spec, lookup=RunLookup(bench.store)).tuning
    assert tuning is not None
    rows = {each.name: each for each in tuning.experiment.rows}
    return [rows[name].changes["training.schedule.lr"] for name in tuning.candidates[row]]


def make(bench: Bench, loss: Callable[[float], float]) -> None:
    """Store the tuning runs that the rows want now, with a loss by learning rate."""
    tuning = select(bench.spec, lookup=RunLookup(bench.store)).tuning
    assert tuning is not None
    runs = tuning_runs(tuning, ["baseline", "pre"]).runs
    for run, task in zip(runs, tasks(runs, Device("cpu"), bench.store.results), strict=True):
        lr = run.spec.training.schedule.options["lr"]
        bench.store.save(task.record("done", dev={"nll": loss(lr)}))


def test_a_row_whose_best_number_is_at_an_end_tries_what_lies_beyond(tmp_path: Path) -> None:
    bench = Bench(tmp_path, EXTENDED)
    grid = [1e-3, 2e-3, 4e-3]
    assert lrs_of(bench, "pre") == grid
    make(bench, lambda lr: abs(lr - 7e-3))
    assert lrs_of(bench, "pre") == [*grid, 8e-3]
    assert bench.row("pre").pending == ("training.schedule.lr",)
    planned = plan(bench.spec, device="cpu", results=bench.store.results)
    assert [len(row.tuning) for row in planned.rows] == [8, 8]
    make(bench, lambda lr: abs(lr - 7e-3))
    assert lrs_of(bench, "pre") == [*grid, 8e-3, 16e-3]  # the best is the last one again
    make(bench, lambda lr: abs(lr - 7e-3))
    assert bench.row("pre").spec.training.schedule.options["lr"] == 8e-3
    experiment = select(bench.spec, lookup=RunLookup(bench.store)).experiment
    said = notes(report.tabulate(experiment, {}))
    assert "tried another beyond it, up to 2 times" in said["tuned"]
    assert "edge of the grid" not in said
    assert api.collect_garbage(bench.store.results, [bench.spec], is_trial=True) == []


def test_it_tries_no_more_than_it_may_and_says_where_it_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, EXTENDED)
    for _ in range(4):
        make(bench, lambda lr: lr)
    assert lrs_of(bench, "baseline") == [1e-3, 2e-3, 4e-3, 5e-4, 2.5e-4]
    experiment = select(bench.spec, lookup=RunLookup(bench.store)).experiment
    said = notes(report.tabulate(experiment, {}))
    assert said["edge of the grid"].endswith("lr: baseline, pre")


def test_what_is_beyond_and_invalid_or_no_number_is_not_tried(tmp_path: Path) -> None:
    axes = "{model.dropout.residual: [0.3, 0.8], training.schedule: [cosine, constant], extend: 3}"
    bench = Bench(tmp_path, re.sub(r"tune: .*", f"tune: {axes}", TEXT))
    tuning = tuning_of(config.load(bench.spec))
    runs = tuning_runs(tuning, ["baseline"]).runs
    for run, task in zip(runs, tasks(runs, Device("cpu"), bench.store.results), strict=True):
        bench.store.save(task.record("done", dev={"nll": -run.spec.model.dropout.residual}))
    selected = select(bench.spec, lookup=RunLookup(bench.store))
    assert selected.tuning is not None
    assert len(selected.tuning.candidates["baseline"]) == 4  # no dropout above 1
    assert bench.row("baseline").spec.model.dropout.residual == 0.8


def test_what_is_beyond_and_refused_by_a_part_is_not_tried(tmp_path: Path) -> None:
    """Schedules are built, rather than read, before one finds a min_lr above its lr."""
    axes = "{training.schedule.min_lr: [1e-3, 4e-3], extend: 3}"
    text = f"training: {{schedule: {{name: cosine, lr: 5e-3}}}}\n{TEXT}"
    bench = Bench(tmp_path, re.sub(r"tune: .*", f"tune: {axes}", text))
    tuning = tuning_of(config.load(bench.spec))
    runs = tuning_runs(tuning, ["baseline", "pre"]).runs
    for run, task in zip(runs, tasks(runs, Device("cpu"), bench.store.results), strict=True):
        loss = -run.spec.training.schedule.options["min_lr"]
        bench.store.save(task.record("done", dev={"nll": loss}))
    selected = select(bench.spec, lookup=RunLookup(bench.store))
    assert selected.tuning is not None
    check(selected.tuning.experiment)
    assert not selected.pending


def test_fresh_repeats_the_grid_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, are_fresh = Bench(tmp_path, EXTENDED), []

    def complete(selection: Selection, options: RunOptions) -> tuple[Records, bool]:
        are_fresh.append(options.fresh)
        make(bench, lambda lr: -lr)
        return stored(selection, RunLookup(bench.store)), True

    monkeypatch.setattr(tune, "complete", complete)
    given = RunOptions(results=bench.store.results, device="cpu", fresh=True)
    with opened(given) as options:
        select_chosen(bench.spec, options)
    assert are_fresh == [True, False, False]


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ([1, 2, 4], None, 8),
        ([100, 200], 50, 400),
        ([0.1, 0.3], 0.0333333, 0.9),
        ([0.0, 0.1], None, None),
        ([5], None, None),
    ],
)
def test_beyond_an_end_lies_what_has_the_ratio_before_it(
    values: list[float], least: float | None, most: float | None
) -> None:
    assert (beyond(values, min), beyond(values, max)) == (least, most)


def test_a_row_waits_for_all_of_its_tuning_runs(bench: Bench) -> None:
    bench.tuned(NLL, "baseline")
    assert bench.row("pre").pending == ("training.schedule.lr",)
    runs = select(bench.spec, lookup=RunLookup(bench.store)).runs
    assert {run.variant for run in runs} == {"baseline"}


def test_the_plan_counts_tuning_runs(bench: Bench) -> None:
    planned = plan(bench.spec, device="cpu", results=bench.store.results)
    assert [len(row.tuning) for row in planned.rows] == [6, 6]  # the same budget for every row
    assert planned.n_missing == 2 * (6 + 2)
    assert planned.remarks()[0].startswith("0 of 16 runs are done")
    assert planned.remarks()[1] == "12 of the runs tune the rows on dev; 0 of them are done"
    bench.tuned(NLL, "baseline")
    planned = plan(bench.spec, device="cpu", results=bench.store.results)
    assert planned.remarks()[0].startswith("6 of 16 runs are done")
    assert planned.remarks()[1].endswith("; 6 of them are done")


def test_seeds_of_tuning_are_not_those_of_the_table(bench: Bench) -> None:
    with pytest.raises(SpecError, match=r"tunes with seed 9, which the table reports"):
        select(bench.spec, seeds=[1, 9])


def test_the_table_says_what_was_chosen_and_what_it_cost(bench: Bench) -> None:
    bench.tuned(NLL | {"lr=0.004": (1.9, 1.9)}, "baseline")
    bench.tuned(NLL, "pre")
    experiment = select(bench.spec, lookup=RunLookup(bench.store)).experiment
    table = report.tabulate(experiment, {})
    assert [cell.text for cell in table.column("training.schedule.lr")] == [
        "0.002 (tuned)",
        "0.004 (tuned)",
    ]
    budget = f"3 candidates {TIMES} 2 seeds (8 and 9) = 6 runs of full length for each row"
    assert budget in notes(table)["tuned"]
    assert "another beyond it" not in notes(table)["tuned"]
    assert notes(table)["edge of the grid"].endswith("lr: pre")


def test_the_table_names_choices_that_the_seeds_of_tuning_cannot_tell(tmp_path: Path) -> None:
    """By the error of the table's own runs on dev, whose differences are 0.1 apart."""
    bench = Bench(tmp_path, TEXT.replace("seeds: [8, 9]", "seeds: [8, 9, 10]"))
    losses = {"lr=0.001": (2.0, 2.1, 2.0), "lr=0.002": (1.5, 1.9, 1.7), "lr=0.004": (1.4, 1.8, 1.6)}
    bench.tuned(losses, "baseline")  # 4e-3 leads by 0.1
    bench.tuned({"lr=0.001": [2.0] * 3, "lr=0.002": [9.0] * 3, "lr=0.004": [11.0] * 3}, "pre")
    selection = select(bench.spec, lookup=RunLookup(bench.store))
    assert selection.whole.tune is not None
    assert selection.whole.tune.leads == pytest.approx({"baseline": 0.1, "pre": 7.0})
    todo = tasks(selection.runs, Device("cpu"), bench.store.results)
    own = {"baseline": {1: 1.0, 2: 1.2}, "pre": {1: 1.3, 2: 1.4}}
    for run, task in zip(selection.runs, todo, strict=True):
        scores = {"bleu": 30.0 + run.seed, "nll": 1.0}
        dev = {"nll": own[run.variant][run.seed]}
        bench.store.save(task.record("done", None, dev=dev, test={"test": scores}))
    table = api.report(bench.spec, results=bench.store.results).table
    note = notes(table)["close choices"]
    sd = 0.1 / 2  # of differences that are 0.3 and 0.2: of one run in the additive model
    assert f"± {sd:.3f}" in note
    assert "less than 0.519 nats" in note  # 12.706 * 0.05 * sqrt(2 / 3)
    assert "for 1 of 2 rows: baseline. " in note
    n = seeds_for(0.1, sd, 1)
    assert note.endswith(f"takes {n} seeds.")


def test_close_choices_are_those_of_the_rows_in_the_table(tmp_path: Path) -> None:
    bench = Bench(tmp_path, f"{TEXT}  rms: {{model.norm: rms}}\n")
    bench.tuned(NLL, "baseline", "rms")
    bench.tuned(NLL | {"lr=0.002": NLL["lr=0.004"]}, "pre")
    selection = select(bench.spec, lookup=RunLookup(bench.store))
    todo = tasks(selection.runs, Device("cpu"), bench.store.results)
    for at, (run, task) in enumerate(zip(selection.runs, todo, strict=True)):
        scores = {"bleu": 30.0 + at, "nll": 1.0}
        dev = {"nll": 1.0 + 0.1 * at * run.seed}
        bench.store.save(task.record("done", None, dev=dev, test={"test": scores}))
    table = api.report(bench.spec, results=bench.store.results, only=["pre"]).table
    assert notes(table)["close choices"].endswith(
        "for 2 of 2 rows: baseline and pre. To tell those of pre, the closest, takes over 1000 "
        "seeds."
    )


def test_what_is_not_chosen_yet_is_a_question_mark(bench: Bench) -> None:
    bench.tuned(NLL, "baseline")
    table = report.tabulate(select(bench.spec, lookup=RunLookup(bench.store)).experiment, {})
    assert table.column("training.schedule.lr")[1].text == "?"
    assert notes(table)["tuned"].endswith("not done yet: pre")


def test_no_override_is_advised_that_tuning_would_undo(bench: Bench) -> None:
    bench.tuned(NLL, "baseline", "pre")
    selection = select(bench.spec, lookup=RunLookup(bench.store))
    for task in tasks(selection.runs, Device("cpu"), bench.store.results):
        bench.store.save(task.record("done"))
    bench.spec.write_text(TEXT.replace("4e-3]", "4e-3, 8e-3]"))
    with pytest.raises(StoreError, match=r"that has ended; `ablate run .*own\.yaml` makes them$"):
        api.report(bench.spec, results=bench.store.results)
