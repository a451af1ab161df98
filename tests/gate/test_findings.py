"""Findings: what shows a claim, by SciPy's tests, and what blesses it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.gate.checks.finding import FindingCheck
from ablate.gate.evidence import UnfitError
from tests.gate.made_up import CONFIRMED, WORSE, blessed, evidence, failure_of, verdict
from tests.gate.test_limits import blessing_of, pairs


@pytest.mark.parametrize("confidence", [0.95, 0.8])
@pytest.mark.parametrize(
    ("claim", "sign", "seen"),
    [("worse", -1, -9), ("better", 1, 9), ("near", -1, 0), ("near", 1, 0)],
)
def test_a_claim_is_shown_where_students_one_sided_tests_show_it(
    claim: Any, sign: int, seen: float, confidence: float
) -> None:
    """Of one side, or of both for rows that are near each other."""
    differences = [sign * each for each in (1.5, 1.9, 1.2, 2.1)]
    half = stats.t.isf(1 - confidence, 3) * np.std(differences, ddof=1) / 2
    edge = abs(np.mean(differences)) + (half if claim == "near" else -half)
    for margin in (edge * 0.999, edge * 1.001):
        bounds = {
            "worse": {"less": -margin},
            "better": {"greater": margin},
            "near": {"less": margin, "greater": -margin},
        }[claim]
        chances = [
            stats.ttest_1samp(differences, bound, alternative=side).pvalue
            for side, bound in bounds.items()
        ]
        terms = {"claim": claim, "margin": margin, "confidence": confidence}
        check = WORSE.model_copy(update=terms)
        judged = verdict(blessed(pairs([seen] * 3), claim=check), pairs(differences), range(1, 5))
        assert judged.passed == (max(chances) < 1 - confidence)


def test_a_row_whose_loss_is_higher_is_worse() -> None:
    worse, better = (
        FindingCheck(row="none", measure="dev.nll", claim=claim, margin=3.0)
        for claim in ("worse", "better")
    )
    assert blessing_of(blessed(evidence(CONFIRMED), nll=worse)).value > 12
    with pytest.raises(UnfitError, match="not shown to be better than baseline"):
        blessed(evidence(CONFIRMED), nll=better)


def test_a_blessing_has_the_differences_by_seed_and_their_std_and_interval() -> None:
    differences = (-4.0, -4.5, -3.75)
    blessing = blessing_of(blessed(pairs(differences), [3, 1, 2], worse=WORSE))
    assert blessing.seeds == (3, 1, 2)
    assert blessing.values == (-3.75, -4.0, -4.5)
    ends = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
    assert blessing.value == pytest.approx(np.mean(differences))
    assert blessing.std == pytest.approx(np.std(differences, ddof=1))
    assert (blessing.low, blessing.high) == pytest.approx((ends.low, ends.high))
    assert blessing.derived.startswith("Student's 90% interval of 3 paired differences; ")


@pytest.mark.parametrize(
    ("claim", "bleu"),
    [
        ("worse", {"baseline": [-1.0, 41.5, 40.5], "none": [-1.0, 28.2, 27.9]}),
        ("near", {"baseline": [-1.0, 41.5, 40.5], "none": [41.0, 41.4, 40.6]}),
    ],
)
def test_a_divergence_that_shows_nothing_is_refused(
    claim: Any, bleu: dict[str, list[float]]
) -> None:
    """Of both rows with a seed, or of either where they are said to be near each other."""
    check = WORSE.model_copy(update={"claim": claim})
    with pytest.raises(UnfitError, match="with seed 1 diverged: a reason"):
        blessed(evidence(bleu), claim=check)


def test_of_a_row_that_is_better_the_other_one_may_diverge() -> None:
    better = FindingCheck(
        row="baseline", against="none", measure="test.test.bleu", claim="better", margin=3.0
    )
    reference = blessed(evidence(CONFIRMED), better=better)
    assert verdict(reference, evidence({**CONFIRMED, "none": [-1.0] * 3})).passed
    assert failure_of(reference, evidence({**CONFIRMED, "baseline": [-1.0] * 3})) == (
        "baseline with seed 1 diverged: a reason"
    )


def test_rows_that_translate_nothing_are_near_each_other_without_showing_it() -> None:
    """As in a table, whose verdict "no difference" takes a baseline with something to lose."""
    near = WORSE.model_copy(update={"claim": "near", "margin": 2.0})
    dead = evidence({"baseline": [0.0, 0.1, 0.0], "none": [0.0, 0.0, 0.1]})
    reason = r"baseline has 0\.03 in test\.test\.bleu, below 2 times the margin"
    with pytest.raises(UnfitError, match=reason):
        blessed(dead, near=near)
    reference = blessed(evidence({"baseline": [4.0] * 3, "none": [4.0, 4.1, 3.9]}), near=near)
    assert re.match(reason, failure_of(reference, dead))
    loss = FindingCheck(row="none", measure="dev.nll", claim="near", margin=60.0)
    assert blessing_of(blessed(evidence({"baseline": [1.0] * 3, "none": [1.0] * 3}), nll=loss))


def test_losses_per_token_of_two_tokenizers_are_not_compared() -> None:
    """As in a table, which compares them in bits per character."""
    plain = evidence(CONFIRMED)
    own = {}
    for (row, seed), record in plain.records.items():
        scores = {**record["test"]["test"], "bits_per_character": record["dev"]["nll"]}
        of_row = {"tokenizer": {"fingerprint": row}, "test": {"test": scores}}
        own[row, seed] = {**record, **of_row}
    runs = replace(plain, records=own)
    loss = FindingCheck(row="none", measure="dev.nll", claim="worse", margin=3.0)
    kinds = ("dev.nll", "dev.perplexity", "train.best_dev_nll", "train.final_loss")
    for measure in kinds:
        check = loss.model_copy(update={"measure": measure})
        reason = f"none and baseline have different tokenizers, so that {measure}, .* per token"
        with pytest.raises(UnfitError, match=reason):
            blessed(runs, loss=check)
    assert re.match("none and baseline", failure_of(blessed(plain, loss=loss), runs))
    characters = {"measure": "test.test.bits_per_character", "margin": 3.0}
    assert blessing_of(blessed(runs, loss=loss.model_copy(update=characters)))
    assert blessing_of(blessed(runs, bleu=WORSE))
