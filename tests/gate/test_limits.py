"""Limits of checks: what lies just within one passes, and what lies just beyond it fails."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.gate.check import Check
from ablate.gate.checks.exact import Exact, ExactBlessing
from ablate.gate.checks.finding import FindingCheck
from ablate.gate.checks.paired import Paired
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence, UnfitError, to_scale
from ablate.gate.reference import Reference
from tests.gate.made_up import (
    BLEU,
    CONFIRMED,
    LOSSES,
    NEW,
    TINY,
    WORSE,
    blessed,
    evidence,
    failure_of,
    new,
    verdict,
)
from tests.gate.test_paired import REPEATS, VALUES, runs

PAIRED = Paired.model_validate({"measure": "test.test.bleu"})
SEVEN = range(1, 8)


def blessing_of(reference: Reference) -> Any:
    (check,) = reference.checks.values()
    return check.blessed


def pairs(differences: Sequence[float]) -> Evidence:
    """Return runs of two rows whose BLEU differs by these, in bits that rounding does not touch."""
    return evidence({"baseline": [32.0] * len(differences), "none": [32 + d for d in differences]})


# means


@pytest.mark.parametrize(("side", "sign"), [("lowest", -1), ("highest", 1)])
def test_a_mean_just_within_a_limit_passes_and_one_just_beyond_it_fails_by_that_much(
    side: str, sign: int
) -> None:
    reference = blessed(evidence({"baseline": TINY}), SEVEN, bleu=BLEU)
    limit = getattr(blessing_of(reference), side)
    assert verdict(reference, new([limit - sign * 1e-4] * 3), NEW).passed
    failure = failure_of(reference, new([limit + sign * 0.25] * 3), NEW)
    assert failure.endswith(f"0.250 too {'low' if sign < 0 else 'high'}")
    assert not verdict(reference, new([limit + sign * 1e-4] * 3), NEW).passed


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e9])
def test_values_that_all_agree_are_met_by_the_same_values_whatever_their_size(scale: float) -> None:
    for value in np.random.default_rng(1).uniform(1, 99, 20):
        number = float(scale * value)
        reference = blessed(evidence({"baseline": [number] * 3}), bleu=BLEU)
        assert verdict(reference, new([number] * 5), range(11, 16)).passed
        off = number * (1 + 1e-9)
        assert not verdict(reference, new([off] * 5), range(11, 16)).passed


def test_a_score_that_0_would_pass_blesses_nothing() -> None:
    low = evidence({"baseline": [0.0, 0.17, 0.0, 0.0, 0.1, 0.2, 0.0]})
    with pytest.raises(UnfitError, match=r"bleu is 0\.0671, so low that a model which translates"):
        blessed(low, SEVEN, bleu=BLEU)
    again = runs([0.5, 0.2, 0.1, 0.3, 0.2], [0.7, 0.4, 0.3, 0.5, 0.4])
    with pytest.raises(UnfitError, match=r"bleu is 0\.267, so low that a model which translates"):
        blessed(again, range(1, 6), bleu=PAIRED)


def test_the_limits_are_the_product_that_a_blessing_writes_down() -> None:
    blessing = blessing_of(blessed(evidence({"baseline": TINY}), SEVEN, bleu=BLEU))
    number, n = r"([\d.]+)", r"1/(\d+)"
    words = rf"{number} below and {number} above: {number} and {number} x std x sqrt\({n} \+ {n}\)"
    loss, gain, *factors, old, new = map(float, re.findall(words, blessing.derived)[0])
    error = blessing.std * math.sqrt(1 / old + 1 / new)
    assert (loss, gain) == pytest.approx([factor * error for factor in factors], rel=5e-3)
    assert (old, new) == (7, 3)
    ends = blessing.value - blessing.lowest, blessing.highest - blessing.value
    assert ends == pytest.approx(
        [stats.t.isf(share * 0.005, 6) * error for share in (0.8, 0.2)], rel=1e-8
    )
    caught = stats.t.cdf((1.5 - ends[0]) / error, 6)
    assert blessing.derived.endswith(
        "Student's t with 6 degrees of freedom, which chance exceeds in 0.5% of gates; "
        f"a true loss of 1.5 is caught in {100 * caught:.2g}%"
    )


def test_a_gate_of_more_seeds_has_the_limits_of_its_own_number() -> None:
    reference = blessed(evidence({"baseline": TINY}), SEVEN, bleu=BLEU)
    error = np.std(TINY, ddof=1) * math.sqrt(1 / 7 + 1 / 10)
    limits = [
        np.mean(TINY) + sign * stats.t.isf(share * 0.005, 6) * error
        for sign, share in ((-1, 0.8), (1, 0.2))
    ]
    for limit, sign in zip(limits, (-1, 1), strict=True):
        for off, passes in ((-1e-4, True), (1e-4, False)):
            new_runs = evidence({"baseline": [limit + sign * off] * 10}, first=11)
            assert verdict(reference, new_runs, range(11, 21)).passed == passes


def test_two_checks_of_means_have_half_of_the_false_alarms_each() -> None:
    nll = Statistical(measure="dev.nll", min_effect=1.5)
    reference = blessed(evidence({"baseline": TINY}), SEVEN, bleu=BLEU, nll=nll)
    assert list(reference.flaws()) == []
    error = np.std(TINY, ddof=1) * math.sqrt(1 / 7 + 1 / 3)
    for sign, share in ((-1, 0.8), (1, 0.2)):
        limit = np.mean(TINY) + sign * stats.t.isf(share * 0.0025, 6) * error
        for off, passes in ((-1e-4, True), (1e-4, False)):
            judged, _ = reference.judge(new([limit + sign * off] * 3), NEW)
            assert judged.passed == passes


def test_equal_values_below_0_are_met_by_the_same_values() -> None:
    """As logarithms are, of which the made-up NLL of a BLEU above 100 is one."""
    nll = Statistical(measure="dev.nll", min_effect=1.5)
    reference = blessed(evidence({"baseline": [170.7] * 3}), nll=nll)
    assert blessing_of(reference).value < 0
    assert verdict(reference, evidence({"baseline": [170.7] * 5}, first=11), range(11, 16)).passed


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (0.5, 0.5, "0.500"),
        (-12.3456, -12.3456, "-12.3"),
        (1234.5, 1234.5, "1234"),
        (1e-9, 1e-9, "0.000000"),
        (2.5, 0.0, "2.5"),
        (1.0, math.inf, "1.000000"),
    ],
)
def test_a_number_has_three_digits_of_the_size_of_its_scale(
    value: float, scale: float, text: str
) -> None:
    assert to_scale(value, scale) == text


def test_derived_numbers_are_kept_with_ten_digits() -> None:
    third = [28 + 1 / 3, 28.2, 27.9]
    for reference in (
        blessed(evidence({"baseline": TINY}), SEVEN, bleu=BLEU),
        blessed(runs([v + 1 / 3 for v in VALUES], REPEATS), range(1, 6), bleu=PAIRED),
        blessed(evidence({**CONFIRMED, "none": third}), worse=WORSE),
    ):
        blessing = blessing_of(reference)
        for key in ("value", "std", "lowest", "highest", "low", "high"):
            if (value := getattr(blessing, key, None)) is not None:
                assert value == float(f"{value:.10g}"), f"{key} has more than ten digits"


def test_as_many_seeds_as_a_gate_runs_again_are_enough_and_two_at_least() -> None:
    for n, seeds in ((2, 2), (3, 3), (2, 1)):
        check = PAIRED.model_copy(update={"seeds": seeds})
        assert blessed(runs(VALUES[:n], [v + 0.01 for v in VALUES[:n]]), range(1, n + 1), b=check)
        with pytest.raises(UnfitError, match=f"needs {n} seeds or more"):
            blessed(runs(VALUES, REPEATS), range(1, n), b=check)


def test_two_runs_so_far_have_a_std_and_one_or_an_infinite_one_has_none() -> None:
    context = Reference(checks={"bleu": BLEU}).context("bleu", SEVEN)

    def forecast(check: Statistical | Paired, of: Evidence) -> str:
        return check.forecast(of, context) or ""

    two = evidence({"baseline": [41.0, 41.2]})
    assert "2 seeds so far, with a std of 0.141" in forecast(BLEU, two)
    error = math.sqrt(0.02) * math.sqrt(1 / 7 + 1 / 3)
    effect = (stats.t.isf(0.8 * 0.005, 6) + stats.t.isf(0.1, 6)) * error
    assert f"7 seeds can promise to catch a loss of {effect:.3f}, and" in forecast(BLEU, two)
    for values in ([41.0], [41.0, math.inf, 41.1]):
        assert "if their std is at most" in forecast(BLEU, evidence({"baseline": values}))
    assert "2 seeds so far" in forecast(PAIRED, runs(VALUES[:2], REPEATS))
    assert "if their std is at most" in forecast(PAIRED, runs(VALUES[:1], REPEATS))


def test_runs_are_too_far_apart_where_95_of_100_such_stds_would_be_smaller() -> None:
    """By the chi-square distribution, of the degrees of freedom of the runs so far."""
    most = 1.5 / (stats.t.isf(0.8 * 0.005, 6) + stats.t.isf(0.1, 6)) / math.sqrt(1 / 7 + 1 / 3)
    context = Reference(checks={"bleu": BLEU}).context("bleu", SEVEN)
    for n in (2, 5):
        limit = most * math.sqrt(stats.chi2.isf(0.05, n - 1) / (n - 1))
        values = np.array(TINY[:n])
        values = 41 + (values - values.mean()) * limit / values.std(ddof=1)
        for factor in (0.999, 1.001):
            runs_so_far = evidence({"baseline": (41 + (values - 41) * factor).tolist()})
            if factor < 1:
                assert f"{n} seeds so far" in (BLEU.forecast(runs_so_far, context) or "")
                continue
            with pytest.raises(UnfitError, match=f"{n} seeds so far.* with 95% confidence, 7"):
                BLEU.forecast(runs_so_far, context)


def test_the_seeds_that_a_gate_chooses_do_not_change_the_tolerance_of_blessed_ones() -> None:
    reference = blessed(runs(VALUES, REPEATS), range(1, 6), bleu=PAIRED)
    own, few, many = (verdict(reference, runs(VALUES), s) for s in ((1, 2, 3), (7,), range(7, 17)))
    assert own == few == many


def test_repeats_on_a_gpu_may_be_of_the_same_kind_of_machine() -> None:
    gpu = runs(VALUES, REPEATS, device="cuda")
    for repeat in gpu.repeats.values():
        repeat["hardware"].update(gpu.records["baseline", 1]["hardware"])
    assert blessing_of(blessed(gpu, range(1, 6), b=PAIRED)).other_machine["device"] == "cuda"


# exact


@pytest.mark.parametrize(("off", "passes"), [(2.999e-4, True), (3.001e-4, False)])
def test_on_another_machine_the_relative_difference_decides(off: float, passes: bool) -> None:
    losses = [1000.0, -7.0, 1e-6]
    reference = blessed(evidence({"baseline": [41.0]}, losses), [1], losses=LOSSES)
    for step in range(3):
        moved = [loss * (1 + off * (number == step)) for number, loss in enumerate(losses)]
        judged = verdict(reference, evidence({"baseline": [41.0]}, moved, cpu="Abacus 10"))
        assert judged.passed == passes, f"step {step + 1}"


@pytest.mark.parametrize("seed", [1, 2])
def test_one_run_on_another_machine_is_enough_to_compare_within_the_tolerance(seed: int) -> None:
    exact = Exact(measure="dev.nll", seeds=2)
    reference = blessed(evidence({"baseline": [41.0, 41.0]}), [1, 2], losses=exact)
    bleu = [41.0 + 1e-3 * (number == seed) for number in (1, 2)]
    records = dict(evidence({"baseline": bleu}).records)
    moved = evidence({"baseline": bleu}, cpu="Abacus 10").records
    judged = verdict(
        reference, Evidence({**records, ("baseline", seed): moved["baseline", seed]}, {})
    )
    assert judged.passed
    assert judged.tolerance == "within 0.03%, other machine"


@pytest.mark.parametrize("measure", ["params.total", "flops.train_per_target_token"])
def test_a_count_is_the_same_on_another_machine(measure: str) -> None:
    """The bias of a small norm is less than 0.03% of a model."""
    section, name = measure.split(".")

    def counted(number: int, **machine: Any) -> Evidence:
        ((key, record),) = evidence({"baseline": [41.0]}, **machine).records.items()
        return Evidence({key: {**record, section: {name: number}}}, {})

    reference = blessed(counted(273_728), [1], size=Exact(measure=measure))
    assert "every kind of machine" in blessing_of(reference).derived
    judged = verdict(reference, counted(273_728, cpu="Abacus 10"))
    assert (judged.passed, judged.tolerance) == (True, "bit for bit")
    assert "273792.0" in failure_of(reference, counted(273_792, cpu="Abacus 10"))


def test_the_largest_relative_difference_is_compared_on_another_machine() -> None:
    reference = blessed(evidence({"baseline": [41.0]}, [7.0, 6.9, 6.8]), [1], losses=LOSSES)
    for off in ([7.0001, 6.9, 7.5], [7.5, 6.9, 6.8001], [7.0001, math.nan, 6.8]):
        assert not verdict(
            reference, evidence({"baseline": [41.0]}, off, cpu="Abacus 10")
        ).passed, f"{off} is no longer compared"


def test_a_difference_is_a_share_of_the_blessed_number_and_counted_among_all_seeds() -> None:
    exact = Exact(measure="dev.nll", seeds=2)
    reference = blessed(evidence({"baseline": [98.0, 98.0]}), [1, 2], losses=exact)
    half_more = evidence({"baseline": [98.0, 97.0]}, cpu="Abacus 10")
    failure = failure_of(reference, half_more)
    assert "seed 2 is 3.0 where the reference has 2.0 (50% off; 1 of 2 numbers differ)" in failure


def test_no_number_is_near_a_blessed_zero() -> None:
    reference = blessed(evidence({"baseline": [41.0]}, [0.0, 6.9, 6.8]), [1], losses=LOSSES)
    near = evidence({"baseline": [41.0]}, [1e-12, 6.9, 6.8], cpu="Abacus 10")
    assert failure_of(reference, near).startswith("train_loss of step 1 of baseline with seed 1")


@pytest.mark.parametrize(
    ("seeds", "values"), [((1,), [[7.0, 6.9, 6.8]]), ((1, 2), [[7.0, 6.9, 6.8], [7.0, 6.9]])]
)
def test_a_blessing_with_numbers_left_out_by_hand_is_found(
    seeds: tuple[int, ...], values: list[list[float]]
) -> None:
    check = Exact(steps=3, seeds=2)
    reference = blessed(evidence({"baseline": TINY}, [7.0, 6.9, 6.8]), [1, 2], losses=check)
    assert list(reference.flaws()) == []
    blessing = blessing_of(reference)
    assert isinstance(blessing, ExactBlessing)
    less = {"seeds": seeds, "values": tuple(tuple(x.hex() for x in row) for row in values)}
    edited = reference.checks["losses"].model_copy(
        update={"blessed": blessing.model_copy(update=less)}
    )
    ((_, reason),) = reference.model_copy(update={"checks": {"losses": edited}}).flaws()
    assert reason == "needs 3 numbers of 2 seeds; bless the reference again"


# findings


@pytest.mark.parametrize(
    ("claim", "effect"), [("worse", -0.5), ("better", 0.5), ("near", 0.5), ("near", -0.5)]
)
def test_an_effect_of_just_the_margin_is_shown_and_one_a_little_short_of_it_is_not(
    claim: Any, effect: float
) -> None:
    terms = {"row": "none", "measure": "test.test.bleu", "claim": claim, "margin": 0.5}
    check = FindingCheck.model_validate(terms)
    reference = blessed(pairs([effect] * 3), claim=check)
    short = effect * (1 + 1e-6 if claim == "near" else 1 - 1e-6)
    assert blessing_of(reference).std == 0
    assert verdict(reference, pairs([effect] * 3)).passed
    assert not verdict(reference, pairs([short] * 3)).passed


@pytest.mark.parametrize(
    ("claim", "margin", "differences", "confidence"),
    [
        ("worse", 2.0, (-3.0, -3.4, -2.7), 0.95),
        ("worse", 1.0, (-3.0, -3.4, -2.7, -3.7, -2.4), 0.95),
        ("worse", 2.5, (-3.0, -3.4, -2.7), 0.8),
        ("better", 2.0, (3.0, 3.3, 2.6), 0.95),
        ("near", 2.5, (1.5, 1.9, 1.2), 0.95),
        ("near", 2.5, (-1.5, -1.9, -1.2), 0.95),
        ("near", 1.0, (0.1, -0.2, 0.1), 0.95),
    ],
)
def test_as_many_simulated_gates_show_a_claim_again_as_a_blessing_says(
    claim: Any, margin: float, differences: tuple[float, ...], confidence: float
) -> None:
    terms = {"claim": claim, "margin": margin, "confidence": confidence}
    check = WORSE.model_copy(update=terms)
    seeds = range(1, len(differences) + 1)
    text = blessing_of(blessed(pairs(differences), seeds, claim=check)).derived
    said = float(re.findall(r"([\d.]+)% of gates with 3 seeds", text)[0]) / 100
    mean, std = np.mean(differences), np.std(differences, ddof=1)
    drawn = np.random.default_rng(1).normal(mean, std, (100_000, 3))
    width = stats.t.isf(1 - confidence, 2) * drawn.std(axis=1, ddof=1) / math.sqrt(3)
    low, high = drawn.mean(axis=1) - width, drawn.mean(axis=1) + width
    shown = {
        "worse": high < -margin,
        "better": low > margin,
        "near": (high < margin) & (low > -margin),
    }[claim]
    assert said == pytest.approx(np.mean(shown), abs=0.008)


def test_a_claim_takes_the_fewest_seeds_with_which_it_is_shown_again() -> None:
    differences = (-3.4, -3.7, -3.6)

    def check(**terms: Any) -> Check:
        return WORSE.model_copy(update={"margin": 3.3, **terms})

    with pytest.raises(UnfitError, match="or a smaller margin") as raised:
        blessed(pairs(differences), worse=check())
    (seeds,) = map(int, re.findall(r"seeds: (\d+)", str(raised.value)))
    assert blessed(pairs(differences), worse=check(seeds=seeds))
    with pytest.raises(UnfitError, match="80% is asked"):
        blessed(pairs(differences), worse=check(seeds=seeds - 1))


@pytest.mark.parametrize(
    ("claim", "margin", "ways"),
    [
        ("worse", 0.2, r", or a smaller margin"),
        ("near", 1.9, r", or a larger margin"),
        ("worse", 0.0, ""),
    ],
)
def test_a_claim_that_is_hardly_shown_again_says_which_margin_would_do(
    claim: Any, margin: float, ways: str
) -> None:
    """None is smaller than 0."""
    check = WORSE.model_copy(update={"claim": claim, "margin": margin})
    runs = pairs([-0.5, -1.8, -0.7, -1.2, -0.4, -1.3])
    with pytest.raises(UnfitError, match=rf"it takes gates of \d+ seeds \(seeds: \d+\){ways}$"):
        blessed(runs, range(1, 7), claim=check)


def test_an_effect_without_spread_is_written_in_full() -> None:
    exact = -3.625 - 2.0**-20  # a difference of bits
    reference = blessed(pairs([exact] * 3), worse=WORSE)
    assert verdict(reference, pairs([exact] * 3)).reference == f"{exact:.10g} (3 seeds)"


# changes


def test_a_number_that_moved_is_written_to_the_larger_of_both_spreads() -> None:
    wide = blessed(evidence({"baseline": TINY}), SEVEN, bleu=BLEU)
    alike = blessed(evidence({"baseline": [41.0] * 7}), SEVEN, bleu=BLEU)
    assert alike.moved(wide) == ["bleu: 41.024 before, 41.000 now"]
    assert wide.moved(alike) == ["bleu: 41.000 before, 41.024 now"]


def test_tolerances_that_widen_are_named_with_their_sizes() -> None:
    old, new = (
        blessed(evidence({"baseline": values}), SEVEN, bleu=BLEU)
        for values in (TINY, [*TINY[:6], 41.6])
    )
    (was_below, was_above), (below, above) = (
        (each.value - each.lowest, each.highest - each.value)
        for each in map(blessing_of, (old, new))
    )
    assert new.loosened(old) == [
        f"bleu: the tolerance below would widen from {was_below:.3f} to {below:.2f}",
        f"bleu: the tolerance above would widen from {was_above:.2f} to {above:.2f}",
    ]


def test_an_effect_that_turned_into_divergence_is_written_to_its_own_spread() -> None:
    effect = blessed(evidence(CONFIRMED), worse=WORSE)
    diverged = blessed(evidence({**CONFIRMED, "none": [-1.0] * 3}), worse=WORSE)
    assert diverged.moved(effect) == ["worse: -12.967 before, every run diverged now"]
    assert effect.moved(diverged) == ["worse: every run diverged before, -12.967 now"]
    assert diverged.moved(diverged) == []
