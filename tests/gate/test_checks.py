"""Verdicts: which number left which tolerance and by how much, and nothing that passes silently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ablate.gate.checks.exact import Exact
from ablate.gate.checks.finding import FindingCheck
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence, UnfitError, values_so_far
from ablate.gate.mean import MeanBlessing
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
    record,
    verdict,
)
from tests.gate.test_paired import CHECK as PAIRED
from tests.gate.test_paired import REPEATS, VALUES, runs


@pytest.fixture
def bleu() -> Reference:
    return blessed(evidence({"baseline": TINY}), range(1, 8), bleu=BLEU)


@pytest.fixture
def losses() -> Reference:
    return blessed(evidence({"baseline": [41.0]}, [7.0, 6.9, 6.8]), [1], losses=LOSSES)


# statistical


def test_a_baseline_within_its_tolerance_holds(bleu: Reference) -> None:
    judged = verdict(bleu, new([40.2, 41.4, 41.0]), NEW)
    assert judged.passed
    assert (judged.reference, judged.measured) == ("41.02 ± 0.31 (7 seeds)", "40.87 (3 seeds)")


def test_a_loss_is_reported_with_the_number_the_tolerance_and_by_how_much(bleu: Reference) -> None:
    assert failure_of(bleu, new([39.2, 39.4, 39.6]), NEW) == (
        "test.test.bleu of baseline is 39.40, the mean of seeds 11, 12, 13; the reference is 41.02 "
        "and tolerates 40.19 to 42.13: 0.793 too low"
    )
    assert failure_of(bleu, new([43.2, 43.4, 43.6]), NEW).endswith("too high")


def test_where_less_is_better_more_is_the_loss() -> None:
    nll = Statistical(measure="dev.nll", min_effect=1.5)
    reference = blessed(evidence({"baseline": TINY}), range(1, 8), nll=nll)
    blessing = reference.checks["nll"].blessed
    assert isinstance(blessing, MeanBlessing)
    assert blessing.highest - blessing.value < blessing.value - blessing.lowest
    assert not verdict(reference, new([39.4] * 3), NEW).passed


def test_a_perplexity_is_judged_by_the_mean_of_the_seeds_as_it_is_blessed() -> None:
    check = Statistical(measure="dev.perplexity", min_effect=1000.0)
    bleu = (95.0, 96.0, 97.0, 98.0, 95.5, 96.5, 97.5)
    reference = blessed(evidence({"baseline": bleu}), range(1, 8), perplexity=check)
    judged = verdict(reference, new([95.0, 97.0, 98.0]), NEW)
    mean = sum(math.exp(nll) for nll in (5.0, 3.0, 2.0)) / 3  # not exp of the mean NLL
    assert float(judged.measured.split()[0]) == pytest.approx(mean, rel=0.01)


def test_a_run_that_is_not_done_or_has_no_finite_value_fails_with_its_reason(
    bleu: Reference,
) -> None:
    assert "it is no number" in failure_of(bleu, new([41.0, float("inf"), 41.0]), NEW)
    assert verdict(bleu, new([41.0, -1.0, 41.0]), NEW).failure == (
        "baseline with seed 12 diverged: a reason"
    )
    assert verdict(bleu, new([41.0, 41.0]), NEW).failure == "baseline with seed 13 is missing"


def test_a_star_is_the_mean_over_all_measures_that_it_names() -> None:
    runs = evidence({"baseline": TINY})
    records = {
        key: {**of_run, "test": {**of_run["test"], "far": {"bleu": 10.0 + 2 * key[1]}}}
        for key, of_run in runs.records.items()
    }
    runs = replace(runs, records=records)
    expected = tuple((bleu + 10.0 + 2 * seed) / 2 for seed, bleu in enumerate(TINY, start=1))
    seeds = range(1, len(TINY) + 1)
    assert runs.values("baseline", "test.*.bleu", seeds) == pytest.approx(expected)
    assert runs.values("baseline", "test.far.*", seeds) == tuple(10.0 + 2 * s for s in seeds)
    assert values_so_far(runs.records, "baseline", "test.*.chrf", seeds) == {}
    del records["baseline", 2]["test"]["far"]
    partly = values_so_far(runs.records, "baseline", "test.*.bleu", seeds)
    assert 2 not in partly
    assert len(partly) == len(TINY) - 1
    both = blessed(
        evidence({"baseline": TINY}), seeds, mean=BLEU.model_copy(update={"measure": "test.*.bleu"})
    )
    alone = blessed(evidence({"baseline": TINY}), seeds, bleu=BLEU)
    mean, bleu = both.checks["mean"].blessed, alone.checks["bleu"].blessed
    assert mean is not None
    assert bleu is not None
    assert mean.model_dump(exclude={"terms"}) == bleu.model_dump(exclude={"terms"})


def test_a_reference_that_cannot_keep_its_promise_says_how_many_seeds_it_takes() -> None:
    with pytest.raises(UnfitError, match=r"5 seeds with a std of 0\.374 .* a reference of 7 seeds"):
        blessed(evidence({"baseline": TINY[:5]}), range(1, 6), bleu=BLEU)
    with pytest.raises(UnfitError, match=r"one seed has no std; .* 4 seeds"):
        blessed(evidence({"baseline": TINY}), [1], bleu=BLEU)
    with pytest.raises(
        UnfitError, match=r"it takes a std of at most [\d.]+, or min_effect: [\d.]+$"
    ):
        blessed(evidence({"baseline": [40.0, 41.0, 42.0]}), bleu=BLEU)


# exact


def test_the_same_bits_hold(losses: Reference) -> None:
    judged = verdict(losses, evidence({"baseline": [9.0]}, [7.0, 6.9, 6.8, 1.0]), [5])
    assert (judged.passed, judged.measured, judged.remarks) == (True, "the same", ())


def test_the_last_bit_of_one_loss_is_seen_and_the_first_step_that_differs_reported(
    losses: Reference,
) -> None:
    failure = failure_of(losses, evidence({"baseline": [41.0]}, [7.0, 6.8, 1.0]))
    assert failure.startswith("train_loss of step 2 of baseline with seed 1 is 6.8 where")
    off = float.fromhex((6.8).hex()[:-4] + "4p+2")
    assert off != 6.8
    failure = failure_of(losses, evidence({"baseline": [41.0]}, [7.0, 6.9, off]))
    assert "train_loss of step 3 of baseline with seed 1 is" in failure
    assert "where the reference has 6.8" in failure
    assert "1 of 3 numbers differ); bit for bit was asked" in failure


def test_another_kind_of_machine_is_reported_and_compared_within_a_tolerance(
    losses: Reference,
) -> None:
    near = evidence({"baseline": [41.0]}, [7.0, 6.9001, 6.8], cpu="Abacus 10")
    judged = verdict(losses, near)
    assert judged.passed
    assert judged.tolerance == "within 0.03%, other machine"
    assert judged.remarks == (
        "compared on another kind of machine (cpu Abacus 10, not Abacus 9), so within 0.03% and "
        "not bit for bit",
    )
    equal = verdict(losses, evidence({"baseline": [41.0]}, [7.0, 6.9, 6.8], cpu="Abacus 10"))
    assert (equal.measured, equal.remarks) == ("the same", judged.remarks)
    far = evidence({"baseline": [41.0]}, [7.0, 6.91, 6.8], cpu="Abacus 10")
    failure = failure_of(losses, far)
    assert "train_loss of step 2" in failure
    assert "0.14% off" in failure
    assert "0.03% is tolerated on another kind of machine" in failure


def test_a_loss_that_is_no_number_is_never_near_enough(losses: Reference) -> None:
    lost = evidence({"baseline": [41.0]}, [7.0, float("nan"), 6.8], cpu="Abacus 10")
    assert not verdict(losses, lost).passed


def test_a_loss_that_is_no_number_is_not_blessed() -> None:
    with pytest.raises(UnfitError, match="some of the numbers are not finite"):
        blessed(evidence({"baseline": [41.0]}, [7.0, float("nan"), 6.8]), [1], losses=LOSSES)


@pytest.mark.parametrize("known", [[], [7.0, 6.9]])
def test_losses_that_are_not_there_fail(losses: Reference, known: list[float]) -> None:
    failure = verdict(losses, evidence({"baseline": [41.0]}, known)).failure
    assert failure == (
        f"baseline with seed 1 has {len(known)} of the 3 numbers that train_loss should have"
    )


def test_any_number_of_a_record_can_be_asked_for_exactly() -> None:
    check = Exact(measure="dev.nll", seeds=2)
    reference = blessed(evidence({"baseline": TINY}), nll=check)
    assert verdict(reference, evidence({"baseline": TINY})).passed
    changed = evidence({"baseline": [TINY[0], 41.53]})
    assert failure_of(reference, changed).startswith("dev.nll of baseline with seed 2 is")


def test_only_the_cpu_blesses_exactly() -> None:
    with pytest.raises(UnfitError, match=r"of cuda; say --device cpu"):
        blessed(evidence({"baseline": [41.0]}, [7.0, 6.9, 6.8], device="cuda"), [1], losses=LOSSES)


def test_any_device_blesses_what_is_counted() -> None:
    of_gpu = {**record(41.0, device="cuda"), "params": {"total": 44_000_000}}
    runs = Evidence({("baseline", 1): of_gpu}, {})
    size = Exact(measure="params.total")
    assert verdict(blessed(runs, [1], size=size), runs, [1]).passed


def test_too_few_steps_or_seeds_bless_nothing() -> None:
    with pytest.raises(UnfitError, match="seed 1 has 2 of the 3 numbers that train_loss should"):
        blessed(evidence({"baseline": [41.0]}, [7.0, 6.9]), [1], losses=LOSSES)
    both = LOSSES.model_copy(update={"seeds": 2})
    with pytest.raises(UnfitError, match="needs 2 seeds; it was given 1"):
        blessed(evidence({"baseline": [41.0]}, [7.0, 6.9, 6.8]), [1], losses=both)


# findings


@pytest.mark.parametrize(
    ("none", "short"),
    [
        (
            [38.5, 39.0, 38.1],
            "-2.467 over seeds 1, 2, 3, and its 90% interval is -2.564 to -2.369, 0.631 short",
        ),
        ([28.0, 46.0, 20.0], "-9.7 over seeds 1, 2, 3"),
        ([45.0, 45.2, 45.4], "the difference is +4.2"),
    ],
)
def test_an_effect_that_is_small_unsure_or_the_other_way_fails(
    none: list[float], short: str
) -> None:
    reference = blessed(evidence(CONFIRMED), worse=WORSE)
    failure = failure_of(reference, evidence({**CONFIRMED, "none": none}))
    assert failure.startswith("none is not shown to be worse than baseline by at least 3 in")
    assert short in failure
    assert failure.endswith("short of the claim")


def test_an_effect_that_is_large_enough_holds_and_its_interval_is_students() -> None:
    reference = blessed(evidence(CONFIRMED), worse=WORSE)
    judged = verdict(reference, evidence(CONFIRMED))
    assert (judged.passed, judged.tolerance) == (True, "worse by 3")
    assert judged.subject == "none against baseline: test.test.bleu"
    check = reference.checks["worse"]
    assert isinstance(check, FindingCheck)
    assert check.blessed is not None
    differences = [28.0 - 41.0, 28.2 - 41.5, 27.9 - 40.5]
    mean = sum(differences) / 3
    sd = (sum((each - mean) ** 2 for each in differences) / 2) ** 0.5
    assert check.blessed.high == pytest.approx(mean + 2.91999 * sd / 3**0.5, abs=1e-4)
    assert check.blessed.low == pytest.approx(mean - 2.91999 * sd / 3**0.5, abs=1e-4)


def test_an_effect_of_at_least_nothing_must_still_be_one() -> None:
    some = WORSE.model_copy(update={"margin": 0.0})
    same = evidence({"baseline": [41.0] * 3, "none": [41.0] * 3})
    with pytest.raises(UnfitError, match="not shown"):
        blessed(same, some=some)


def test_a_row_that_diverges_is_worse_than_any_number() -> None:
    reference = blessed(evidence(CONFIRMED), worse=WORSE)
    diverged = evidence({**CONFIRMED, "none": [-1.0, -1.0, -1.0]})
    judged = verdict(reference, diverged)
    assert judged.passed
    assert judged.remarks == ("1, 2, 3 diverged, which is worse than any number",)
    assert verdict(blessed(diverged, worse=WORSE), diverged).passed
    one_left = evidence({**CONFIRMED, "none": [-1.0, -1.0, 28.0]})
    assert "has no interval" in failure_of(reference, one_left)


def test_a_blessing_says_why_a_difference_has_no_interval() -> None:
    with pytest.raises(UnfitError, match=r"single pair .* has no interval; give more seeds"):
        blessed(evidence(CONFIRMED), [1], worse=WORSE)
    infinite = evidence({**CONFIRMED, "none": [28.0, float("inf"), 28.0]})
    with pytest.raises(UnfitError, match=r"test\.test\.bleu is not finite with some seed"):
        blessed(infinite, worse=WORSE)
    failure = failure_of(blessed(evidence(CONFIRMED), worse=WORSE), infinite)
    assert failure == "test.test.bleu is not finite with some seed"


def test_a_baseline_that_diverges_shows_nothing() -> None:
    reference = blessed(evidence(CONFIRMED), worse=WORSE)
    diverged = evidence({"baseline": [-1.0, 41.5, 40.5], "none": CONFIRMED["none"]})
    assert verdict(reference, diverged).failure == "baseline with seed 1 diverged: a reason"
    with pytest.raises(UnfitError, match=r"not shown to be worse than baseline by at least 3"):
        blessed(evidence({**CONFIRMED, "none": [40.0, 40.0, 40.0]}), worse=WORSE)


# what changes between two references


def test_a_reference_as_it_was_blessed_has_no_flaw(bleu: Reference, losses: Reference) -> None:
    assert list(bleu.flaws()) == []
    assert list(losses.flaws()) == []
    assert list(blessed(evidence(CONFIRMED), worse=WORSE).flaws()) == []


@pytest.mark.parametrize(
    ("changes", "place", "reason"),
    [
        ({"min_effect": 3.0}, ("min_effect",), "was 1.5 when the check was blessed"),
        ({"seeds": 1}, ("seeds",), "was 3 when the check was blessed"),
        ({"row": "none"}, ("row",), "was baseline when the check was blessed"),
        ({"better": "higher"}, ("better",), "was not given when the check was blessed"),
        ({"blessed": None}, (), "reference again, or remove the check"),
        ({"blessed.lowest": 30.0}, ("blessed", "lowest"), "follows from the values and terms"),
        ({"blessed.std": 3.0}, ("blessed", "std"), "follows from the values and terms"),
        ({"blessed.values": (41.0, 49.0)}, ("blessed",), "cannot promise"),
    ],
)
def test_what_was_edited_by_hand_is_found(
    bleu: Reference, changes: dict[str, Any], place: tuple[str, ...], reason: str
) -> None:
    (key, value), check = next(iter(changes.items())), bleu.checks["bleu"]
    if key.startswith("blessed."):
        assert check.blessed is not None
        inner = {key.partition(".")[2]: value}
        if "values" in inner:
            inner["seeds"] = (1, 2)
        value = check.blessed.model_copy(update=inner)
        key = "blessed"
    edited = check.model_copy(update={key: value})
    judged = list(bleu.model_copy(update={"checks": {"bleu": edited}}).flaws())
    assert len(judged) == 1
    assert judged[0][0] == ("checks", "bleu", *place)
    assert reason in judged[0][1]


def test_each_derived_number_that_was_edited_is_found(bleu: Reference) -> None:
    n_numbers = 0
    for reference in (bleu, blessed(evidence(CONFIRMED), worse=WORSE)):
        ((name, check),) = reference.checks.items()
        assert check.blessed is not None
        for key in ("value", "std", "lowest", "highest", "low", "high"):
            if (number := getattr(check.blessed, key, None)) is None:
                continue
            edited = check.blessed.model_copy(update={key: 1.0001 * number})
            checks = {name: check.model_copy(update={"blessed": edited})}
            judged = reference.model_copy(update={"checks": checks}).flaws()
            assert [at for at, _ in judged] == [("checks", name, "blessed", key)]
            n_numbers += 1
    assert n_numbers == 8


def test_a_term_that_was_deleted_is_found() -> None:
    reference = blessed(evidence(CONFIRMED), worse=WORSE.model_copy(update={"better": "higher"}))
    check = reference.checks["worse"].model_copy(update={"better": None})
    ((at, reason),) = reference.model_copy(update={"checks": {"worse": check}}).flaws()
    assert at == ("checks", "worse", "better")
    assert reason.startswith("was higher when the check was blessed")


def test_a_check_that_was_dropped_by_hand_is_found(bleu: Reference) -> None:
    other = blessed(evidence({"baseline": [41.0]}, [7.0, 6.9, 6.8]), [1], losses=LOSSES)
    assert bleu.blessed is not None
    both = bleu.blessed.model_copy(update={"checks": ("bleu", "losses")})
    left = other.model_copy(update={"blessed": both})
    assert [reason for _, reason in left.flaws()] == [
        "the check 'bleu' has been dropped since it was blessed; bless the reference again"
    ]


def test_a_check_that_another_reference_has_blessed_is_not_judged(bleu: Reference) -> None:
    """Its values are of other runs, of which this reference knows neither spec nor machine."""
    other = blessed(evidence(CONFIRMED), worse=WORSE)
    both = bleu.model_copy(update={"checks": {**bleu.checks, **other.checks}})
    assert list(both.flaws()) == [
        (
            ("checks", "worse"),
            "was blessed in another reference, or by another name; bless the reference again",
        )
    ]


def _mean(values: Sequence[float] = TINY, **terms: Any) -> Reference:
    check = BLEU.model_copy(update=terms)
    runs = evidence({"baseline": values, "none": values})
    return blessed(runs, range(1, len(values) + 1), bleu=check)


def _losses(steps: int = 3, seeds: int = 1, rtol: float = 3e-4) -> Reference:
    check = Exact(steps=steps, seeds=seeds, rtol_other_machine=rtol)
    runs = evidence({"baseline": [41.0, 41.0]}, [7.0, 6.9, 6.8])
    return blessed(runs, [1, 2], losses=check)


def _worse(n: int = 3, margin: float = 3.0, claim: Any = "worse", **terms: Any) -> Reference:
    check = WORSE.model_copy(update={"margin": margin, "claim": claim, **terms})
    rows = {**CONFIRMED, "other": CONFIRMED["baseline"]}
    bleu = {row: [*values, *values] for row, values in rows.items()}
    return blessed(evidence(bleu), range(1, n + 1), worse=check)


def _paired() -> Reference:
    return blessed(runs(VALUES, REPEATS), range(1, 6), bleu=PAIRED)


@pytest.mark.parametrize(
    ("old", "new", "sentences"),
    [
        (_mean(), _mean(), []),
        (_mean(), _mean([value - 3 for value in TINY]), []),
        (_mean(), _mean(power=0.95), []),
        (_mean([*TINY[:6], 41.6]), _mean(), []),
        (_mean(), _mean([*TINY[:6], 41.6]), ["below would widen", "above would widen"]),
        (_mean(), _mean(min_effect=2.0), ["min_effect would rise from 1.5 to 2.0"]),
        (_mean(), _mean(power=0.8), ["power would fall from 0.9 to 0.8"]),
        (_mean(seeds=4), _mean(), ["seeds would fall", "below would", "above would"]),
        (_mean([*TINY, 41.0]), _mean(), ["fewer seeds", "below would", "above would"]),
        (_mean(), _mean(row="none"), ["row would be none, not baseline"]),
        (_mean(), _mean(measure="dev.nll"), ["measure would be dev.nll, not test.test.bleu"]),
        (
            _mean(better="lower"),
            _mean(better="higher"),
            ["bleu: better would be higher, not lower"],
        ),
        (_mean(), _mean(better="lower"), ["bleu: better would be lower, not none"]),
        (_paired(), _mean(), ["kind would be statistical, not paired"]),
        (_losses(), _losses(rtol=1e-4), []),
        (_losses(), _losses(rtol=1e-3), ["rtol_other_machine would rise from 0.0003 to 0.001"]),
        (_losses(), _losses(steps=2), ["steps would fall from 3 to 2"]),
        (_losses(seeds=2), _losses(), ["seeds would fall from 2 to 1", "fewer seeds, from 2 to 1"]),
        (_worse(), _worse(margin=2.0), ["worse: margin would fall from 3.0 to 2.0"]),
        (_worse(), _worse(confidence=0.9), ["confidence would fall from 0.95 to 0.9"]),
        (_worse(), _worse(claim="near", margin=20.0), ["claim would be near, not worse"]),
        (_worse(claim="near", margin=20.0), _worse(claim="near", margin=19.0), []),
        (
            _worse(claim="near", margin=20.0),
            _worse(claim="near", margin=20.5),
            ["margin would rise from"],
        ),
        (_worse(), _worse(against="other"), ["against would be other, not baseline"]),
        (_worse(n=6, seeds=4), _worse(n=6), ["seeds would fall from 4 to 3"]),
        (_worse(n=6), _worse(), ["fewer seeds, from 6 to 3"]),
        (_mean(), _losses(), ["bleu would be dropped"]),
    ],
)
def test_everything_that_is_loosened_is_named(
    old: Reference, new: Reference, sentences: list[str]
) -> None:
    judged = new.loosened(old)
    assert len(judged) == len(sentences), judged
    for sentence, text in zip(sentences, judged, strict=True):
        assert sentence in text


@pytest.mark.parametrize(
    ("by_hand", "new", "sentence"),
    [
        ({"min_effect": 3.0}, {"min_effect": 3.0}, ": min_effect would rise from 1.5 to 3.0"),
        ({"blessed": None}, {}, " has lost what blessed it; it may be looser than it was"),
    ],
)
def test_what_was_loosened_or_deleted_by_hand_first_is_named_all_the_same(
    by_hand: dict[str, Any], new: dict[str, Any], sentence: str
) -> None:
    old = _mean()
    edited = {"bleu": old.checks["bleu"].model_copy(update=by_hand)}
    before = old.model_copy(update={"checks": edited})
    assert _mean(**new).loosened(before) == [f"bleu{sentence}"]


def test_a_term_that_one_of_two_references_lacks_is_not_compared() -> None:
    whole = _mean()
    blessed: Any = whole.checks["bleu"].blessed
    terms = {term: value for term, value in blessed.terms.items() if term != "power"}
    fewer = blessed.model_copy(update={"terms": terms})
    check = whole.checks["bleu"].model_copy(update={"blessed": fewer})
    without = whole.model_copy(update={"checks": {"bleu": check}})
    assert without.loosened(_mean(power=0.95)) == []
    assert _mean(power=0.8).loosened(without) == []


def test_numbers_that_moved_are_reported() -> None:
    assert _mean().moved(_mean()) == []
    assert _mean([value - 1 for value in TINY]).moved(_mean()) == [
        "bleu: 41.024 before, 40.024 now"
    ]
    assert _mean().moved(_losses()) == ["bleu is new"]
    assert _losses(steps=2).moved(_losses()) == ["losses: the numbers are new"]
