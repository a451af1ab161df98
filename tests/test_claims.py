"""The registered claims: their file is sound, and the rules are applied as they are written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pruning
import pytest
import yaml
from registered import (
    FAILED,
    HELD,
    Claim,
    Effect,
    effect_of,
    holm,
    judge,
    judge_by_table,
    registrations,
    undetectable,
    verdict_of,
)
from scipy import stats

from ablate import api, config
from ablate.analysis.comparison import compare
from tests import made_up_runs

ROOT = Path(__file__).parents[1]

REGISTRATIONS = registrations()
CLAIMS = [claim for registration in REGISTRATIONS for claim in registration.claims]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.claim)
def test_every_claim_is_about_a_row_that_exists_with_new_seeds(claim: Claim) -> None:
    experiment = config.load(ROOT / "experiments" / f"{claim.experiment}.yaml")
    names = {row.name for row in experiment.rows}
    assert {claim.row, claim.against} <= names
    assert min(experiment.seeds) > 100
    assert claim.margin >= 0
    assert claim.source


def claim(direction: str, margin: float = 1.0, measure: str = "test.test.bleu") -> Claim:
    return Claim("c", "e", "row", measure, direction, margin, "s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("direction", "interval", "p", "verdict"),
    [
        ("better", (1.2, 3.0), 0.01, "at least the margin"),
        ("better", (0.5, 3.0), 0.01, "same direction"),
        ("better", (0.5, 3.0), 0.06, "cannot tell"),
        ("better", (-3.0, -0.5), 0.01, "opposite"),
        ("worse", (-3.0, -1.1), 0.01, "at least the margin"),
        ("worse", (0.5, 3.0), 0.01, "opposite"),
        ("equal", (-0.9, 0.8), None, "within the margin"),
        ("equal", (-0.9, 1.8), None, "cannot tell"),
        ("equal", (1.1, 1.8), None, "different"),
        ("equal", (-1.8, -1.1), None, "different"),
    ],
)
def test_verdicts_follow_the_registered_rules(
    direction: str, interval: tuple[float, float], p: float | None, verdict: str
) -> None:
    low, high = interval
    effect = Effect((low + high) / 2, low, high, 0.0, 8)
    assert verdict_of(claim(direction), effect, p) == verdict


def test_a_lower_nll_is_better_and_a_margin_of_zero_awards_the_direction_alone() -> None:
    lower, higher = Effect(-0.2, -0.3, -0.1, 0.0, 8), Effect(2.0, 1.0, 3.0, 0.0, 8)
    assert verdict_of(claim("better", 0.05, "dev.nll"), lower, 0.01) == "at least the margin"
    assert verdict_of(claim("better", 0.0), higher, 0.01) == "same direction"


def test_holm_steps_down_and_stays_monotone() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


def records_of(baseline: Iterable[float], row: Iterable[float]) -> dict[tuple[str, int], Any]:
    return {
        (name, seed): {"status": "done", "hash": "x", "test": {"test": {"bleu": value}}}
        for name, values in (("baseline", baseline), ("row", row))
        for seed, value in enumerate(values)
    }


def test_effects_are_paired_and_divergence_counts_as_no_bleu() -> None:
    rng = np.random.default_rng(0)
    baseline, row = rng.normal(60, 3, 5), rng.normal(58, 3, 5)
    records = records_of(baseline, row)
    effect = effect_of(claim("worse"), records)
    assert effect is not None
    test = stats.ttest_rel(row, baseline)
    interval = test.confidence_interval(0.95)
    assert (effect.mean, effect.p) == pytest.approx(((row - baseline).mean(), test.pvalue))
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high))
    records["row", 0] = {"status": "diverged", "hash": "y"}
    diverged = effect_of(claim("worse"), records)
    assert diverged is not None
    assert diverged.mean == pytest.approx((np.array([0.0, *row[1:]]) - baseline).mean())


def test_an_effect_of_exactly_zero_cannot_be_told() -> None:
    records = records_of([60.0, 61.0, 62.0], [60.0, 61.0, 62.0])
    better, equal = judge([claim("better", 0.0), claim("equal")], {"e": records}, learned=1)
    assert better.effect == Effect(0.0, 0.0, 0.0, 1.0, 3)
    assert (better.p_adjusted, better.verdict) == (1.0, "cannot tell")
    assert equal.verdict == "within the margin"


def test_a_baseline_that_has_not_learned_judges_nothing() -> None:
    records = records_of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    (judged,) = judge([claim("equal")], {"e": records}, learned=50)
    assert judged.verdict == "not judged"
    (judged,) = judge([claim("equal")], {"e": records}, learned=1)
    assert judged.verdict == "within the margin"


def test_what_a_design_could_find_is_found_in_4_of_5_designs() -> None:
    """By scipy's noncentral distribution, at Holm's first step of ten claims."""
    rng = np.random.default_rng(0)
    differences = rng.normal(1.0, 2.0, 8)
    records = records_of(np.zeros(8), differences)
    judged = judge([claim("better")] * 10, {"e": records}, learned=0)
    found = judged[0].detectable
    assert found is not None
    critical = stats.t.ppf(1 - 0.05 / 20, 7)
    power = stats.nct.sf(critical, 7, found / stats.sem(differences))
    assert power == pytest.approx(0.8, abs=1e-3)
    (equal,) = judge([claim("equal")], {"e": records}, learned=0)
    assert equal.detectable is None


def test_a_table_judges_by_its_own_intervals(tmp_path: Path) -> None:
    spec = made_up_runs.finished(tmp_path)
    report = api.report(spec, results=tmp_path / "results")
    table = report.table.results
    assert table is not None
    values: dict[str, dict[int, float]] = {"baseline": {}}
    for (row, seed), record in report.records.items():
        values.setdefault(row, {})[seed] = record["test"]["test"]["bleu"]
    shown = compare(values).differences
    claims = [replace(claim("worse", 0.0), row=row) for row in shown]
    for one in judge_by_table(claims, {"e": table}, learned=0):
        of = shown[one.claim.row]
        assert one.effect is not None
        assert (one.effect.mean, one.p_adjusted) == (of.estimate, of.p)
        is_told = (
            of.simultaneous is not None and not of.simultaneous.low <= 0 <= of.simultaneous.high
        )
        assert (one.verdict == "cannot tell") is not is_told
    for one in judge_by_table(claims, {"e": table}, learned=101):
        assert one.verdict == "not judged"
    of_one_seed = api.report(spec, results=tmp_path / "results", seeds=[1]).table.results
    assert of_one_seed is not None
    (first, *_) = judge_by_table(claims, {"e": of_one_seed}, learned=0)
    assert (first.effect, first.verdict) == (None, "cannot tell")


def test_a_table_judges_its_claims_while_others_are_unfinished() -> None:
    of_table, of_all = (
        next(each for each in REGISTRATIONS if each.by_table is by_table)
        for by_table in (True, False)
    )
    first, *others = of_table.experiments
    assert {one.experiment for one in of_table.without([first]).claims} == set(others)
    assert of_table.without([]) == of_table
    assert not of_all.without(of_all.experiments[:1]).claims
    assert of_all.without([]) == of_all


def test_claims_that_their_seeds_cannot_tell_are_not_to_be_registered() -> None:
    by_title = {each.title: each for each in REGISTRATIONS}
    refused = undetectable(by_title["Single parts"], sd=1.6 * 2**0.5)
    assert {"Narang: half as deep", "pre-norm"} <= refused.keys()
    assert not {"no positions", "learned positions"} & refused.keys()
    assert refused["Narang: half as deep"] > refused["pre-norm"] > 3  # six seeds, and eight
    assert not undetectable(by_title["Single parts"], sd=0.001)


def test_pages_state_the_outcomes_of_the_claims() -> None:
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    rows = set()
    for each in REGISTRATIONS:
        for one in json.loads(each.outcomes.read_text("utf-8"))["claims"]:
            counts[each.by_table][one["verdict"]] += 1
            if each.by_table and one["claim"]["measure"] == "test.test.bleu":
                rows.add((one["claim"]["experiment"], one["claim"]["row"], one["table"]))
    page = " ".join((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").split())
    stated = {}
    for by_table, of in counts.items():
        n_held, n_failed = (sum(of[verdict] for verdict in kind) for kind in (HELD, FAILED))
        stated[by_table] = f"{n_held} held, {n_failed} failed, {of['cannot tell']} cannot be told"
        assert stated[by_table] in page
    n_told = sum(verdict != "cannot tell" for _, _, verdict in rows)
    again = f"Those {counts[True].total()} are registered again"
    assert again in page
    assert f"{stated[True]}, and the tables decide {n_told} of their {len(rows)} rows." in page
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    n_held, n_failed = (sum(counts[False][verdict] for verdict in kind) for kind in (HELD, FAILED))
    assert f"{n_held} of {counts[False].total()} held and {n_failed} failed" in findings


@pytest.mark.parametrize(
    ("n_below", "bleu", "verdict"),
    [
        ((0, 1, 0, 1), 60.0, "held"),
        ((4, 4, 3, 4), 60.0, "failed"),
        ((0, 4, 1, 3), 60.0, "cannot tell"),
        ((0, 1, 0, 1), 49.0, "not judged"),
    ],
)
def test_a_stack_needs_its_heads_or_does_not(
    n_below: tuple[int, ...], bleu: float, verdict: str
) -> None:
    """Of four heads of the encoder in each run, so many change BLEU."""
    claim = yaml.safe_load(pruning.CLAIM.read_text(encoding="utf-8"))
    runs = [
        {
            "bleu": bleu,
            "heads": {
                **{f"encoder.0:{head}": {"p": 0.001 if head < n else 0.01} for head in range(4)},
                **{f"decoder.0:{head}": {"p": 0.001} for head in range(4)},
            },
        }
        for n in n_below
    ]
    outcome = pruning.judge(claim, runs)
    shares = [n / 4 for n in n_below]
    low, high = stats.t.interval(0.95, len(shares) - 1, np.mean(shares), stats.sem(shares))
    assert (outcome["verdict"], outcome["share"]) == (verdict, np.mean(shares))
    assert (outcome["low"], outcome["high"]) == pytest.approx((low, high))
