"""What a blessing takes from its runs, and what it says of runs that are not like those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate import config
from ablate.config import Experiment
from ablate.errors import SpecError, StoreError
from ablate.gate.bless import (
    BlessingError,
    bless,
    first_reference,
    forecast,
    provenance_of,
    published_number,
)
from ablate.gate.check import Check
from ablate.gate.checks.exact import Exact
from ablate.gate.checks.finding import FindingCheck
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import (
    MOST_STEPS,
    Evidence,
    UnfitError,
    difference,
    first_losses,
    machine,
    percentage,
    to_scale,
    values_so_far,
)
from ablate.gate.reference import Reference, refuse_other_scores, remarks
from ablate.training.engines.factory import SCHEMES
from tests.gate.bench import EXPERIMENT
from tests.gate.made_up import BLEU, CONFIRMED, LOSSES, SEEDS, TINY, WORSE, blessed, evidence
from tests.gate.test_paired import CHECK as PAIRED

SEVEN = range(1, 8)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    spec = tmp_path / "tiny.yaml"
    spec.write_text(EXPERIMENT, encoding="utf-8")
    return config.load(spec)


def complete(runs: Evidence, **changes: Any) -> Evidence:
    git = {"commit": "c1", "is_clean": True}
    records = {
        (row, seed): {**record, "hash": f"{row}-{seed}", "git": git, **changes}
        for (row, seed), record in runs.records.items()
    }
    return replace(runs, records=records)


def changed(runs: Evidence, row: str, seed: int, **changes: Any) -> Evidence:
    record = {**runs.records[row, seed], **changes}
    return replace(runs, records={**runs.records, (row, seed): record})


# what is blessed


def test_a_forecast_refuses_runs_whose_engine_failed() -> None:
    failed = {"is_fallback": True, "engine_note": "not compile: no luck"}
    runs = changed(evidence({"baseline": TINY[:2]}), "baseline", 2, **failed)
    reason = "baseline with seed 2 was trained with the eager engine, not compile: no luck"
    with pytest.raises(BlessingError, match=reason):
        forecast(Reference(checks={"bleu": BLEU}), runs, SEVEN, may_weaken=False)


def test_a_forecast_refuses_seeds_that_would_lose_a_blessed_check() -> None:
    runs = evidence({"baseline": TINY}, [7.0, 6.9, 6.8])
    reference = blessed(runs, SEVEN, bleu=BLEU, losses=LOSSES)
    with pytest.raises(BlessingError, match=r"^bleu cannot be blessed: one seed has no std"):
        forecast(reference, Evidence({}, {}), [1], may_weaken=False)


def test_the_first_checks_are_those_that_the_runs_can_bless() -> None:
    cpu, gpu = evidence({"baseline": TINY}), evidence({"baseline": TINY}, device="cuda")
    assert list(first_reference("baseline", cpu.records).checks) == ["losses", "bleu"]
    assert list(first_reference("baseline", gpu.records).checks) == ["bleu"]
    cpu, gpu = complete(cpu, test={}), complete(gpu, test={})
    assert list(first_reference("baseline", cpu.records).checks) == ["losses"]
    with pytest.raises(BlessingError, match="baseline has nothing to compare"):
        first_reference("baseline", gpu.records)
    provisional = first_reference("baseline", {}).checks
    rows = [(name, check.row) for name, check in provisional.items()]
    assert rows == [("losses", "baseline"), ("bleu", "baseline")]


def test_a_blessing_keeps_the_source_and_the_published_numbers_that_it_finds(
    experiment: Experiment,
) -> None:
    runs = complete(evidence({"baseline": TINY}))
    asked = Reference(checks={"bleu": BLEU})
    new = bless(asked, experiment, runs, SEVEN, {}, may_weaken=False).reference
    published = new.checks["bleu"].published
    assert published is not None
    assert published.value == 41.0
    assert new.source == f"our own runs of {experiment.name}; see `blessed`"
    own = published.model_copy(update={"value": 40.0})
    named = new.model_copy(
        update={
            "source": "ours",
            "checks": {"bleu": new.checks["bleu"].model_copy(update={"published": own})},
        }
    )
    again = bless(named, experiment, runs, SEVEN, {}, may_weaken=False).reference
    assert (again.source, again.checks["bleu"].published) == ("ours", own)


def test_a_check_that_the_forecast_refused_is_refused_and_the_others_are_blessed(
    experiment: Experiment,
) -> None:
    reference = Reference(checks={"bleu": BLEU, "losses": LOSSES})
    runs = complete(evidence({"baseline": TINY}, [7.0, 6.9, 6.8]))
    both = bless(reference, experiment, runs, SEVEN, {"bleu": "no"}, may_weaken=False)
    assert both.refused == ("no",)
    assert both.reference.checks["bleu"].blessed is None
    assert both.reference.blessed is not None
    assert both.reference.blessed.checks == ("losses",)
    with pytest.raises(BlessingError, match=r"^no\nnever$"):
        bless(
            reference, experiment, runs, SEVEN, {"bleu": "no", "losses": "never"}, may_weaken=False
        )
    with pytest.raises(BlessingError, match=r"^no$"):  # it was blessed before
        bless(both.reference, experiment, runs, SEVEN, {"losses": "no"}, may_weaken=False)


def test_what_may_promise_less_is_blessed_with_the_least_effect_only_if_that_is_allowed(
    experiment: Experiment,
) -> None:
    runs = complete(evidence({"baseline": (40.0, 41.0, 42.0, 40.5, 41.5)}))
    reference = Reference(checks={"bleu": BLEU})
    weak = bless(reference, experiment, runs, range(1, 6), {}, may_weaken=True)
    assert weak.reference.checks["bleu"].terms(0.005)["min_effect"] == 3.8
    assert weak.weakened[0].startswith("bleu promises less than was asked: 5 seeds with a std of")
    with pytest.raises(BlessingError, match="cannot promise"):
        bless(reference, experiment, runs, range(1, 6), {}, may_weaken=False)


# where runs come from


def test_a_blessing_names_every_run_once_with_its_own_hash(experiment: Experiment) -> None:
    other = {"commit": "c2", "is_clean": False}
    runs = changed(complete(evidence(CONFIRMED)), "none", 3, git=other)
    records = dict(reversed([*runs.records.items()]))
    source = provenance_of(experiment, records, {"worse": WORSE})
    assert source.runs == {
        row: {str(seed): f"{row}-{seed}" for seed in SEEDS} for row in ("baseline", "none")
    }
    assert list(source.runs["none"]) == ["1", "2", "3"]
    assert (source.commits, source.is_clean) == (("c2", "c1"), False)
    assert (source.machine["torch"], source.versions) == ("2.13.0", {"torch": "2.13.0"})
    assert source.checks == ("worse",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"versions": {"torch": "1.0"}}, r"torch 1\.0, not 2\.13\.0"),
        ({"versions": {"torch": "2.13.0", "numpy": "1"}}, r"numpy 1, not None"),
        ({"hardware": {"device": "cuda"}}, "device cuda, not cpu"),
    ],
)
def test_the_last_of_many_runs_is_of_the_same_place_or_it_is_said_how_it_differs(
    experiment: Experiment, changes: dict[str, Any], reason: str
) -> None:
    runs = changed(complete(evidence({"baseline": TINY})), "baseline", 7, **changes)
    seconds = Statistical(measure="train.seconds", min_effect=1.0)
    strict = {"losses": LOSSES, "pairs": PAIRED, "worse": WORSE, "seconds": seconds}
    for name, check in strict.items():
        where = rf"different places \({reason}.*\), which cannot bless {name}; say --fresh"
        with pytest.raises(BlessingError, match=where):
            provenance_of(experiment, runs.records, {"bleu": BLEU, name: check})


def test_new_seeds_may_be_blessed_by_runs_of_several_places(experiment: Experiment) -> None:
    runs = complete(evidence({"baseline": TINY}))
    for seed, cpu in ((3, "Abacus 10"), (5, "Abacus 11"), (6, "Abacus 10")):
        hardware = {**runs.records["baseline", seed]["hardware"], "cpu": cpu}
        runs = changed(runs, "baseline", seed, hardware=hardware)
    source = provenance_of(experiment, runs.records, {"bleu": BLEU})
    assert source.machine["cpu"] == "Abacus 9"
    assert [place.machine["cpu"] for place in source.other_places] == ["Abacus 10", "Abacus 11"]
    assert [place.versions for place in source.other_places] == [source.versions] * 2


def test_a_run_whose_process_was_killed_is_of_no_other_place(experiment: Experiment) -> None:
    (run,) = config.expand(experiment, [1], ["baseline"])
    runs = complete(evidence(CONFIRMED), spec=run.spec.model_dump(mode="json"))
    alone = provenance_of(experiment, runs.records, {"losses": LOSSES})
    killed = {"status": "oom", "error": "killed by signal 9", "hash": "none-2", "spec": {}}
    with_killed = {**runs.records, ("none", 2): killed}
    source = provenance_of(experiment, with_killed, {"losses": LOSSES})
    assert (source.machine, source.other_places) == (alone.machine, ())
    assert source.runs["none"] == {"1": "none-1", "3": "none-3"}
    spec = runs.records["baseline", 1]["spec"]
    first = {
        ("baseline", 1): {**killed, "spec": spec},
        ("baseline", 2): runs.records["baseline", 2],
    }
    assert not any("machine" in each for each in remarks(source, experiment, first, lambda _: "f"))


def test_signatures_are_of_the_scores_that_checks_are_about(experiment: Experiment) -> None:
    scores = {"bleu": 41.0, "bleu_signature": "b", "chrf": 60.0, "chrf_signature": "c"}
    runs = complete(evidence({"baseline": TINY}), test={"test": scores})

    def signatures(*measures: str) -> dict[str, str]:
        checks: dict[str, Check] = {m: Exact(measure=m) for m in measures}
        return provenance_of(experiment, runs.records, checks).signatures

    assert signatures("test.test.bleu") == {"bleu": "b"}
    diverged = changed(runs, "baseline", 1, test={})
    assert provenance_of(experiment, diverged.records, {"b": BLEU}).signatures == {"bleu": "b"}
    assert signatures("test.test.chrf", "dev.nll") == {"chrf": "c"}
    assert signatures("test.*.bleu") == {"bleu": "b"}
    assert signatures("test.other.bleu", "dev.test.bleu", "test.seconds", "test.test.bleu.x") == {}


def test_scores_in_other_tokens_than_the_blessed_ones_are_refused(experiment: Experiment) -> None:
    signature = "nrefs:1|tok:13a|version:2.6.0"
    scores = {"bleu": 41.0, "bleu_signature": signature}
    runs = complete(evidence({"baseline": TINY}), test={"test": scores})
    blessed = provenance_of(experiment, runs.records, {"bleu": BLEU})
    for same in (signature, signature.replace("2.6.0", "3.0.0"), None):
        again = changed(runs, "baseline", 2, test={"test": {**scores, "bleu_signature": same}})
        refuse_other_scores(blessed, again.records)
    other = {**scores, "bleu_signature": signature.replace("13a", "zh")}
    reason = r"blessed with bleu by nrefs:1\|tok:13a; these runs have it by nrefs:1\|tok:zh"
    with pytest.raises(SpecError, match=reason):
        refuse_other_scores(blessed, changed(runs, "baseline", 2, test={"test": other}).records)


def test_test_sets_with_other_numbers_of_references_have_signatures_of_their_own(
    experiment: Experiment,
) -> None:
    of_sets = {
        name: {"bleu": 41.0, "bleu_signature": f"nrefs:{n}|tok:13a|version:2.6.0"}
        for name, n in (("test", 1), ("four", 4))
    }
    runs = complete(evidence({"baseline": TINY}), test=of_sets)
    blessed = provenance_of(experiment, runs.records, {"bleu": BLEU})
    refuse_other_scores(blessed, runs.records)
    more = {**of_sets["test"], "bleu_signature": "nrefs:2|tok:13a|version:2.6.0"}
    reason = r"by nrefs:1\|tok:13a; nrefs:4\|tok:13a; these runs have it by nrefs:2\|tok:13a"
    with pytest.raises(SpecError, match=reason):
        refuse_other_scores(blessed, complete(runs, test={**of_sets, "test": more}).records)


def test_a_published_number_is_of_one_row_and_one_of_its_measures(experiment: Experiment) -> None:
    number = published_number(BLEU, experiment, "test")
    assert number is not None
    assert (number.value, number.source) == (41.0, "Nobody 2026")
    assert published_number(BLEU, experiment, "test2016") is None
    assert published_number(Exact(measure="dev.nll"), experiment, "test") is None
    effect = FindingCheck(against="none", measure="test.test.bleu", claim="better", margin=1)
    assert published_number(effect, experiment, "test") is None, "an effect is no published score"
    unpublished = replace(experiment, published=None)
    assert published_number(BLEU, unpublished, "test") is None


def test_runs_of_another_precision_or_machine_are_reported(experiment: Experiment) -> None:
    (run,) = config.expand(experiment, [2], ["baseline"])
    runs = complete(evidence({"baseline": TINY}), spec=run.spec.model_dump(mode="json"))
    blessed_as = provenance_of(experiment, runs.records, {})

    def said(
        precision: str, draws: str = SCHEMES[0], now: Evidence = runs, fingerprint: str | None = "f"
    ) -> list[str]:
        known = config.identity(run.spec, "f", precision, draws)
        of_runs = blessed_as.model_copy(update={"runs": {"baseline": {"2": known}}})
        return list(remarks(of_runs, experiment, now.records, lambda _: fingerprint))

    for draws in SCHEMES:
        assert said("fp32", draws) == []
    assert said("bf16") == ["baseline was blessed in bf16"]
    (reason,) = said("fp32", fingerprint=None)
    assert reason.startswith("baseline is not the run that was blessed: the experiment")
    other = complete(evidence({"baseline": TINY}, cpu="Abacus 10"), spec=run.spec.model_dump())
    assert said("fp32", now=other) == [
        "the reference is of another kind of machine: cpu Abacus 10, not Abacus 9"
    ]
    both = {**runs.records, ("baseline", 9): other.records["baseline", 1]}
    blessed_as = provenance_of(experiment, both, {"bleu": BLEU})
    assert said("fp32", now=other) == []


# measurements


def test_a_curve_is_read_to_the_first_step_that_it_lacks(tmp_path: Path) -> None:
    curve = tmp_path / "curve.csv"
    assert first_losses(curve) == []

    def losses(steps: Sequence[int]) -> list[float]:
        lines = [f"{step},{step / 8}" for step in steps]
        curve.write_text("\n".join(["step,train_loss", *lines]), encoding="utf-8")
        return first_losses(curve)

    assert losses([1, 2, 3, 5, 6]) == [1 / 8, 2 / 8, 3 / 8]
    assert losses([2, 3]) == []
    assert losses(range(1, MOST_STEPS + 9)) == [step / 8 for step in range(1, MOST_STEPS + 1)]
    curve.write_text("step,train_loss\n1,7.0\n2,\n", encoding="utf-8")
    assert str(first_losses(curve)) == "[7.0, nan]"
    for content in ("step\n1\n", "step,train_loss\none,7.0\n", "step,train_loss\n1,x\n"):
        curve.write_text(content, encoding="utf-8")
        with pytest.raises(StoreError, match="is damaged"):
            first_losses(curve)


def test_values_keep_the_order_of_their_seeds_and_a_run_that_is_not_done_ends_them() -> None:
    runs = evidence({"baseline": [41.0, 42.0, -1.0]})
    assert runs.values("baseline", "test.test.bleu", (2, 1)) == (42.0, 41.0)
    assert values_so_far(runs.records, "baseline", "test.test.bleu", SEEDS) == {1: 41.0, 2: 42.0}
    assert values_so_far(runs.records, "baseline", "dev.no", SEEDS) == {}
    with pytest.raises(UnfitError, match="baseline with seed 3 diverged: a reason"):
        runs.values("baseline", "test.test.bleu", SEEDS)
    assert runs.summary("baseline", SEEDS, [3])
    runs = changed(runs, "baseline", 3, status="oom", error=None)
    with pytest.raises(UnfitError, match=r"baseline with seed 3 ran out of memory$"):
        runs.summary("baseline", SEEDS, [2])


def test_machines_are_of_one_kind_if_nothing_that_rounds_differs() -> None:
    one = evidence({"baseline": [41.0]}).records["baseline", 1]
    bigger = evidence({"baseline": [41.0]}, memory_gib=8.0).records["baseline", 1]
    assert machine(one) == machine(bigger)
    assert machine({}) == {}
    other = evidence({"baseline": [41.0]}, threads=2, cpu_kind="new").records["baseline", 1]
    assert difference(machine(other), machine(one)) == "cpu_kind new, not None; threads 2, not 1"
    both = {"device_name": "A", "cpu": "A"}
    assert difference(both, {"device_name": "B", "cpu": "B"}) == "device_name A, not B"


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (500.0, "1"),
        (50.0, "1.2"),
        (5.0, "1.23"),
        (0.5, "1.235"),
        (-0.5, "1.235"),
        (1e-9, "1.234568"),
    ],
)
def test_a_number_has_three_digits_of_what_it_is_compared_with(scale: float, text: str) -> None:
    assert to_scale(1.23456789012345, scale) == text
    assert to_scale(1.23456789012345, scale, "+") == f"+{text}"
    assert to_scale(1.23456789012345, 0) == "1.23456789"
    assert to_scale(1.23456789012345, float("inf")) == "1.234568"


def test_a_share_that_is_nearly_all_has_more_digits() -> None:
    shares = (0.00003, 0.001, 0.5, 0.994, 0.995, 0.9973, 1.0)
    texts = ["0.003%", "0.1%", "50%", "99%", "99.5%", "99.73%", "100%"]
    assert [percentage(share) for share in shares] == texts


# references


def test_a_gate_takes_as_many_new_seeds_as_the_check_that_needs_most() -> None:
    more = BLEU.model_copy(update={"seeds": 5})
    runs = evidence({"baseline": TINY})
    reference = blessed(
        runs, [1, 2, 3, 4, 6, 7], few=BLEU.model_copy(update={"min_effect": 3.0}), many=more
    )
    tuned = reference.model_copy(update={"pilot_seeds": (8,)})
    assert tuned.new_seeds(of_tuning=[9]) == (5, 10, 11, 12, 13)
    assert tuned.seeds_to_judge([20, 21, 22], are_required=False) == (5, 9, 10, 11, 12)
    assert tuned.seeds_to_judge([20, 21, 22, 23, 24], are_required=True) == (20, 21, 22, 23, 24)


def test_checks_of_means_alone_share_the_false_alarms() -> None:
    checks: dict[str, Check] = {"losses": LOSSES, "worse": WORSE}
    assert Reference(checks=checks, alpha=0.01).alpha_each == 0.01
    checks |= {"a": BLEU, "b": PAIRED, "c": Statistical.model_validate({"measure": "test.x.bleu"})}
    assert Reference(checks=checks, alpha=0.03).alpha_each == pytest.approx(0.01)


def test_runs_are_of_every_row_of_a_check_with_the_seeds_that_it_uses() -> None:
    reference = Reference(checks={"losses": LOSSES, "worse": WORSE})
    both = {(row, seed) for row in ("baseline", "none") for seed in (4, 5)}
    assert reference.runs_to_bless([4, 5]) == both
    assert Reference(checks={"losses": LOSSES}).runs_to_bless([4, 5]) == {("baseline", 4)}
    of_losses = blessed(evidence(CONFIRMED, [7.0, 6.9, 6.8]), losses=LOSSES, worse=WORSE)
    assert of_losses.runs_to_judge([4, 5]) == {("baseline", 1), *both}
