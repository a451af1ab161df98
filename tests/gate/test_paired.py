"""Checks of the blessed seeds themselves: each is compared with its own value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.api import RunOptions, bless
from ablate.errors import SpecError
from ablate.gate.bless import BlessingError
from ablate.gate.checks.paired import Paired, PairedBlessing
from ablate.gate.evidence import Evidence, UnfitError
from ablate.gate.reference import Reference, read
from ablate.gate.tolerance import PairedPromise, margins
from ablate.runner import provenance
from tests.gate.bench import BLEU, EXPERIMENT, Bench
from tests.gate.made_up import MACHINE, blessed, record, verdict

VALUES = (38.0, 41.0, 44.0, 40.0, 43.0)
REPEATS = (38.3, 40.8, 44.2, 39.9, 43.4)
CHECK = Paired.model_validate({"measure": "test.test.bleu"})
PROMISE = PairedPromise(alpha=0.005, min_effect=1.5, power=0.9, n_new=3)


def runs(values: Sequence[float], repeats: Sequence[float] = (), **machine: Any) -> Evidence:
    return Evidence(
        {("baseline", seed): record(value, **machine) for seed, value in enumerate(values, 1)},
        {},
        {("baseline", s): record(value, cpu="Abacus 10") for s, value in enumerate(repeats, 1)},
    )


@pytest.fixture
def bleu() -> Reference:
    return blessed(runs(VALUES, REPEATS), range(1, 6), bleu=CHECK)


def test_the_tolerance_is_of_differences_and_not_of_seeds(bleu: Reference) -> None:
    blessing = bleu.checks["bleu"].blessed
    assert isinstance(blessing, PairedBlessing)
    rms = np.sqrt(np.mean(np.subtract(REPEATS, VALUES) ** 2))
    room = margins(rms, 5, PROMISE)
    assert blessing.std == pytest.approx(rms)
    assert blessing.value == pytest.approx(41.0)
    assert (blessing.lowest, blessing.highest) == pytest.approx(
        (41.0 - room.loss, 41.0 + room.gain)
    )
    assert "the mean of the same 3 seeds may lie" in blessing.derived
    assert "x std x sqrt(1/3), Student's t with 5 degrees of freedom" in blessing.derived
    assert blessing.other_machine["cpu"] == "Abacus 10"
    assert list(bleu.flaws()) == []


def test_the_mean_is_said_to_be_of_the_first_seeds(bleu: Reference) -> None:
    judged = verdict(bleu, runs(VALUES[:3]))
    assert (judged.reference, judged.measured) == (
        "41.00 (3 seeds) ± 0.26 (5 pairs)",
        "41.00 (3 seeds)",
    )


def test_a_loss_that_new_seeds_would_hide_is_caught(bleu: Reference) -> None:
    judged = verdict(bleu, runs([value - 1.5 for value in VALUES[:3]]), (7, 8, 9))
    assert judged.failure is not None
    assert "is 39.50, the mean of seeds 1, 2, 3; the reference is 41.00" in judged.failure
    assert verdict(bleu, runs(VALUES[:3])).passed
    assert verdict(bleu, runs(REPEATS[:3])).passed


def test_it_needs_repeats_of_every_seed_on_another_kind_of_machine() -> None:
    context = Reference(checks={"bleu": CHECK}).context("bleu", range(1, 6))
    with pytest.raises(UnfitError, match=r"no repeat of baseline with 5 is done"):
        CHECK.bless(runs(VALUES, REPEATS[:4]), context)
    with pytest.raises(UnfitError, match=r"repeats are of the same kind of machine"):
        CHECK.bless(runs(VALUES, REPEATS, cpu="Abacus 10"), context)
    with pytest.raises(UnfitError, match=r"needs to know how far runs of one seed lie apart"):
        CHECK.forecast(runs(()), context)
    with pytest.raises(UnfitError, match="needs 3 seeds or more, as many as a gate runs again"):
        CHECK.bless(runs(VALUES, REPEATS), Reference(checks={"b": CHECK}).context("b", (1, 2)))


def test_every_repeat_is_of_one_other_kind_of_machine() -> None:
    context = Reference(checks={"bleu": CHECK}).context("bleu", range(1, 6))
    several = runs(VALUES, REPEATS)
    several.repeats["baseline", 4]["hardware"]["cpu"] = "Abacus 11"
    reason = r"of several kinds of machine \(cpu Abacus 11, not Abacus 10\); run the same seeds"
    with pytest.raises(UnfitError, match=reason):
        CHECK.bless(several, context)
    own = runs(VALUES, REPEATS)
    own.repeats["baseline", 4]["hardware"]["cpu"] = MACHINE["cpu"]
    with pytest.raises(UnfitError, match=r"of several kinds of machine \(cpu Abacus 9, not"):
        CHECK.bless(own, context)


def test_a_repeat_whose_engine_failed_blesses_nothing() -> None:
    eager = {"is_fallback": True, "engine_note": "not compile: no luck"}
    whole = runs(VALUES, REPEATS)
    fallen = {("baseline", 2): {**whole.repeats["baseline", 2], **eager}}
    reason = "repeat of baseline with seed 2 was trained with the eager engine, not compile: no"
    with pytest.raises(UnfitError, match=reason):
        CHECK.bless(
            replace(whole, repeats={**whole.repeats, **fallen}),
            Reference(checks={"bleu": CHECK}).context("bleu", range(1, 6)),
        )


def test_earlier_repeats_serve_while_the_values_are_the_same(bleu: Reference) -> None:
    check = bleu.checks["bleu"].model_copy(update={"min_effect": 2.0})
    again = blessed(runs(VALUES), range(1, 6), bleu=check).checks["bleu"].blessed
    assert isinstance(again, PairedBlessing)
    assert again.repeats == REPEATS
    with pytest.raises(UnfitError, match="no repeat of baseline"):
        blessed(runs([*VALUES[:4], 43.1]), range(1, 6), bleu=check)


def test_edited_repeats_are_noticed(bleu: Reference) -> None:
    check = bleu.checks["bleu"]
    assert check.blessed is not None
    wider = check.blessed.model_copy(update={"repeats": tuple(v + 0.4 for v in VALUES)})
    edited = bleu.model_copy(
        update={"checks": {"bleu": check.model_copy(update={"blessed": wider})}}
    )
    assert [at[-1] for at, _ in edited.flaws()] == ["std", "lowest", "highest"]


@pytest.mark.parametrize("n", [3, 5, 10])
def test_an_unchanged_baseline_on_a_third_machine_fails_as_seldom_as_promised(n: int) -> None:
    """Repeats and gate share the blessed runs' rounding errors, which only lowers the rate."""
    rng = np.random.default_rng(n)
    blessed_errors, others = rng.standard_normal((2, 100_000, n))
    third = rng.standard_normal((100_000, 3))
    std = np.sqrt(((others - blessed_errors) ** 2).mean(axis=1))
    off = (third - blessed_errors[:, :3]).mean(axis=1)
    room = margins(1.0, n, PROMISE)
    assert np.mean((off < -room.loss * std) | (off > room.gain * std)) <= 0.005


# from files


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path)
    bench.reference.write_text(
        "checks: {bleu: {kind: paired, measure: test.test.bleu}}\n", encoding="utf-8"
    )
    bench.store_runs({"baseline": BLEU["baseline"]})
    return bench


def repeats_of(bench: Bench, folder: Path) -> Path:
    folder.mkdir()
    other = Bench(folder)
    other.spec.write_text(EXPERIMENT, encoding="utf-8")
    machine = {**provenance.hardware("cpu"), "threads": 1, "cpu": "Abacus 9"}
    values = [value + 0.1 for value in BLEU["baseline"]]
    other.store_runs({"baseline": values}, hardware=machine)
    return other.store.results


def test_a_blessing_takes_repeats_and_a_gate_takes_the_blessed_seeds(
    bench: Bench, tmp_path: Path
) -> None:
    bench.bless(repeats=repeats_of(bench, tmp_path / "other"))
    check = read(bench.reference).reference.checks["bleu"]
    assert isinstance(check.blessed, PairedBlessing)
    assert check.blessed.other_machine["cpu"] == "Abacus 9"
    assert bench.gate().passed
    with pytest.raises(SpecError, match="has seeds of its own; drop --seeds"):
        bench.gate(seeds=[6, 7, 8])
    bench.store_runs({"baseline": [value - 1.0 for value in BLEU["baseline"]]})
    (judged,) = bench.gate().verdicts
    assert judged.failure is not None
    assert "the mean of seeds 1, 2, 3" in judged.failure


def test_without_repeats_nothing_is_trained(bench: Bench) -> None:
    options = RunOptions(seeds=range(1, 8), results=bench.store.results / "empty")
    with pytest.raises(BlessingError, match=r"bleu cannot be blessed: .* with --repeats"):
        bless(bench.spec, bench.reference, options)
    assert not (bench.store.results / "empty").exists()


def test_repeats_that_no_check_needs_are_refused(bench: Bench, tmp_path: Path) -> None:
    bench.edit("kind: paired", "kind: statistical")
    with pytest.raises(SpecError, match="--repeats is for checks of the kind 'paired'"):
        bench.bless(repeats=tmp_path)
