"""Blessing: the forecast before training, which runs are trained, which checks are refused."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ablate import api, config
from ablate.api import Blessed, Gated, RunOptions
from ablate.api.selection import Records, RunLookup, Selection, stored, tasks, tuning_runs
from ablate.cli.app import app
from ablate.errors import SpecError
from ablate.gate.bless import BlessingError
from ablate.gate.reference import read
from ablate.runner.devices import Device
from tests.gate.bench import EXPERIMENT, Bench

NARROW = (41.0, 41.3, 40.8, 41.1, 40.9, 41.2, 41.0, 40.9, 41.1, 41.0)
WIDE = tuple(41 + 10 * (value - 41) for value in NARROW)
ASKED = "checks: {bleu: {kind: statistical, measure: test.test.bleu}}\n"
SEVEN = range(1, 8)


class Trainer:
    """Stands in for training: stores made-up runs, and notes which seeds were asked for."""

    def __init__(self, bench: Bench, values: Sequence[float]) -> None:
        self.bench, self.values = bench, values
        self.trained: list[list[int]] = []
        self.options: list[RunOptions] = []

    def complete(self, selection: Selection, options: RunOptions) -> tuple[Records, bool]:
        seeds = [run.seed for run in selection.runs]
        self.trained.append(seeds)
        self.options.append(options)
        for seed in seeds:
            losses = [7.0 - step / 9 for step in range(20)]
            self.bench.store_runs({"baseline": [self.values[seed - 1]]}, losses, first=seed)
        return stored(selection, RunLookup(options.store)), True


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path)
    bench.reference.write_text(ASKED, encoding="utf-8")
    return bench


@pytest.fixture
def trainer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Trains runs of a narrow spread; a test may give it other values."""
    trainer = Trainer(bench, NARROW)
    monkeypatch.setattr(import_module("ablate.api.gate_runs"), "complete", trainer.complete)
    return trainer


def bless(bench: Bench, seeds: Sequence[int] = SEVEN, **options: Any) -> Blessed:
    run_options = RunOptions(seeds=seeds, device="cpu", results=bench.store.results, **options)
    return api.bless(bench.spec, bench.reference, run_options)


@pytest.mark.parametrize("fresh", [False, True])
def test_what_can_be_promised_is_said_before_training_and_after_three_seeds(
    bench: Bench, trainer: Trainer, capsys: pytest.CaptureFixture[str], fresh: bool
) -> None:
    assert bless(bench, fresh=fresh).exit_status == 0
    assert trainer.trained == [[1, 2, 3], [4, 5, 6, 7]]
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "bleu: 7 seeds can promise to catch a loss of 1.5 if their std is at most 0.407"
    )
    assert second.startswith("bleu: 3 seeds so far, with a std of 0.252; with that, 7 seeds can")


def test_what_cannot_be_promised_ends_after_three_seeds(bench: Bench, trainer: Trainer) -> None:
    trainer.values = WIDE
    reason = (
        r"bleu cannot be blessed: 3 seeds so far, with a std of 2\.52; with 95% confidence, "
        r"7 seeds cannot promise .* min_effect: 9\.3$"
    )
    with pytest.raises(BlessingError, match=reason):
        bless(bench)
    assert trainer.trained == [[1, 2, 3]]


def test_what_cannot_be_promised_leaves_the_other_checks_to_be_blessed(
    bench: Bench, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.reference.write_text(ASKED.replace("}}", "}, losses: {kind: exact}}"), encoding="utf-8")
    trainer.values = WIDE
    outcome = bless(bench)
    assert trainer.trained == [[1, 2, 3]]
    assert "cannot be blessed: 3 seeds so far, with a std of 2.52" in capsys.readouterr().err
    assert outcome.exit_status == 1
    assert outcome.refused[0].endswith("min_effect: 9.3")
    checks = read(bench.reference).reference.checks
    assert [name for name, check in checks.items() if check.blessed] == ["losses"]


def test_a_std_that_more_seeds_may_lower_rules_nothing_out(bench: Bench, trainer: Trainer) -> None:
    values = (40.5, 41.5, 41.0, 41.0, 41.05, 40.95, 41.0)
    trainer.values = values
    assert bless(bench).exit_status == 0
    assert trainer.trained == [[1, 2, 3], [4, 5, 6, 7]]


def test_a_first_reference_promises_the_smallest_effect_that_it_can(
    bench: Bench, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.reference.unlink()
    trainer.values = WIDE
    outcome = bless(bench)
    assert outcome.exit_status == 0
    (sentence,) = outcome.weakened
    assert sentence.startswith("bleu promises less than was asked: 7 seeds with a std of 1.7")
    check = read(bench.reference).reference.checks["bleu"]
    smallest = check.terms(0.005)["min_effect"]
    assert f"min_effect: {smallest:g}" in sentence
    forecast = "bleu will promise less than was asked: 3 seeds so far, with a std of 2.52; with 95%"
    assert forecast in capsys.readouterr().err
    assert list(outcome.reference.checks) == ["losses", "bleu"]


def test_a_first_reference_of_one_seed_has_the_losses(bench: Bench, trainer: Trainer) -> None:
    bench.reference.unlink()
    outcome = bless(bench, [4])
    assert outcome.exit_status == 1
    assert [name for name, check in outcome.reference.checks.items() if check.blessed] == ["losses"]
    assert "one seed has no std" in outcome.refused[0]


def test_a_measure_that_no_run_has_is_reported_after_the_first_runs(
    bench: Bench, trainer: Trainer
) -> None:
    bench.edit("test.test.bleu", "test.tset.bleu")
    with pytest.raises(SpecError, match=r"no run has a measure 'test\.tset\.bleu'; did you mean"):
        bless(bench)
    assert trainer.trained == [[1, 2, 3]]


# seeds


def test_a_gate_without_seeds_takes_new_ones(bench: Bench, trainer: Trainer) -> None:
    bless(bench)
    assert bench.gate(is_stored=False, device="cpu", engine="eager").passed
    assert trainer.trained[2:] == [[8, 9, 10]]
    assert trainer.options[-1].engine == "eager"


def test_the_experiments_seeds_are_taken_where_they_are_new(bench: Bench, trainer: Trainer) -> None:
    bless(bench, range(4, 11))
    assert bench.gate(is_stored=False, device="cpu").passed
    assert trainer.trained[-1] == [1, 2, 3]


def test_seeds_that_were_blessed_are_refused(bench: Bench, trainer: Trainer) -> None:
    bless(bench)
    reason = (
        r"the check 'bleu' is about new seeds, and seed 7 blessed it; .* 'paired' .*"
        r"3 seeds \(7, 8, 9\); new ones are --seeds 8,9,10"
    )
    with pytest.raises(SpecError, match=reason):
        bench.gate(is_stored=False, seeds=[7, 8, 9], device="cpu")


def test_seeds_of_a_pilot_neither_bless_nor_judge(bench: Bench, trainer: Trainer) -> None:
    bench.reference.write_text(f"pilot_seeds: [1, 2]\n{ASKED}", encoding="utf-8")
    with pytest.raises(SpecError, match=r"yaml:1:14: pilot_seeds: a pilot has used seeds 1, 2"):
        bless(bench)
    assert trainer.trained == []
    bless(bench, range(3, 8))
    with pytest.raises(SpecError, match="a pilot has used seed 1; the gate has 3 seeds"):
        bench.gate(is_stored=False, seeds=[1, 8, 9], device="cpu")
    assert read(bench.reference).reference.new_seeds() == (8, 9, 10)


def test_seeds_of_tuning_are_not_new(bench: Bench) -> None:
    bench.store_runs({"baseline": [*NARROW, 41.0]})
    bench.bless(SEVEN)
    tune = "tune: {training.schedule.lr: [1e-2, 2e-2], seeds: [8]}\n"
    bench.spec.write_text(EXPERIMENT + tune, encoding="utf-8")
    candidates = tuning_runs(config.tuning_of(config.load(bench.spec)), ["baseline"])
    todo = tasks(candidates.runs, Device("cpu"), bench.store.results)
    for nll, task in zip((1.0, 2.0), todo, strict=True):
        bench.store.save(task.record("done", dev={"nll": nll}))
    assert [judged.measured for judged in bench.gate().verdicts] == ["41.03 (3 seeds)"]
    with pytest.raises(SpecError, match="new ones are --seeds 9,10,11"):
        bench.gate(seeds=[7, 9, 10])


# options


def test_the_command_hands_every_option_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []

    def gate(*words: Any, **choices: Any) -> Gated:
        calls.append((*words, choices))
        return Gated("e", (), ())

    monkeypatch.setattr(api, "gate", gate)
    words = ["gate", "a.yaml", "--reference", "b.yaml", "--seeds", "1,2", "--device", "cpu"]
    words += ["--jobs", "2", "--engine", "eager", "--set", "x=1", "--results", "r", "--fresh"]
    words += ["--probe-seconds", "3"]
    with pytest.raises(SystemExit):
        app(words)
    capsys.readouterr()
    options = RunOptions(
        (1, 2), ("x=1",), "cpu", 2, "eager", Path("r"), fresh=True, probe_seconds=3
    )
    assert calls == [(Path("a.yaml"), Path("b.yaml"), options, {"junit": None, "is_stored": False})]
