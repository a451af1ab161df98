"""Looks that an experiment plans: what is decided when, from made-up runs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.analysis import sequential
from ablate.analysis.comparison import Promise, compare
from ablate.analysis.dunnett import sidak_value
from ablate.analysis.measures import Verdict
from ablate.analysis.spreads import slack
from ablate.analysis.statistics import Interval
from ablate.config import Experiment
from ablate.report import Table, render, tabulate
from ablate.report.looks import Looks, judge
from ablate.report.verdicts import conclusion
from tests.report import made_up

BLEU = "test.test.bleu"
LOOKS = (3, 5, 8)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return replace(made_up.experiment(tmp_path, seeds="[1, 2, 3, 4, 5, 6, 7, 8]"), looks=LOOKS)


def records(of: Experiment, bleu: Callable[[str, int], float]) -> made_up.Records:
    """Return records with the BLEU of a row and seed, and an error below 1.3."""
    made = made_up.records(of)
    for (row, seed), record in made.items():
        error = random.Random(f"{row} {seed}").uniform(-1.3, 1.3)
        record["test"]["test"]["bleu"] = bleu(row, seed) + error
    return made


def up_to(made: made_up.Records, **n_seeds: int) -> made_up.Records:
    return {(row, s): record for (row, s), record in made.items() if s <= n_seeds.get(row, 99)}


OFFSETS = {"baseline": 0.0, "learned": -9.0, "literal": 1.8, "heads_1": 0.0}


def offset(row: str, seed: int) -> float:
    return 40 + OFFSETS[row]


def test_before_the_first_look_nothing_is_judged(experiment: Experiment) -> None:
    made = records(experiment, offset)
    for some in ({}, up_to(made, baseline=3, learned=3, literal=3, heads_1=2)):
        looks = judge(experiment, some)
        assert looks.n_seeds == dict.fromkeys(OFFSETS, 3)
        assert (looks.decided, looks.n_looks) == ({}, 0)
    differences = looks.comparisons[BLEU].differences
    assert differences["learned"].estimate == pytest.approx(-9, abs=2)
    assert all(each.simultaneous is None for each in differences.values())


def test_decided_rows_get_no_more_seeds_and_the_baseline_does(experiment: Experiment) -> None:
    made = records(experiment, offset)
    looks = judge(experiment, up_to(made, baseline=3, learned=3, literal=3, heads_1=3))
    assert looks.decided == {"learned": 3}
    assert looks.n_seeds == {"baseline": 5, "learned": 3, "literal": 5, "heads_1": 5}
    looks = judge(experiment, made)
    assert looks.n_looks == 3
    assert looks.decided == {"learned": 3, "literal": 5}
    assert looks.n_seeds == {"baseline": 8, "heads_1": 8, **looks.decided}


def test_what_is_decided_follows_from_the_seeds_of_a_look_alone(experiment: Experiment) -> None:
    made = records(experiment, offset)
    looks = judge(experiment, made)
    shuffled = list(made.items())
    random.Random(1).shuffle(shuffled)
    assert judge(experiment, dict(shuffled)) == looks
    needed = up_to(made, **looks.n_seeds)
    assert judge(experiment, needed) == looks
    stranger = {
        run: {**r, "status": "diverged"} if run[1] > looks.n_seeds[run[0]] else r
        for run, r in made.items()
    }
    assert judge(experiment, stranger) == looks


def test_intervals_are_those_of_the_last_look_of_a_row(experiment: Experiment) -> None:
    made = records(experiment, offset)
    looks = judge(experiment, made)
    levels, of_one = (sequential.levels(LOOKS, n) for n in (3, 1))
    rows = list(OFFSETS)
    for n, level, level_of_one in zip(LOOKS, levels, of_one, strict=True):
        values = {
            row: {s: made[row, s]["test"]["test"]["bleu"] for s in range(1, n + 1)} for row in rows
        }
        expected = compare(values, promise=Promise(level, level_of_one, len(OFFSETS) - len(rows)))
        for row in rows[1:]:
            if looks.n_seeds[row] == n:
                actual = replace(looks.comparisons[BLEU].differences[row], median_unbiased=None)
                assert actual == expected.differences[row]
        rows = [row for row in rows if looks.decided.get(row) != n]
    assert levels[0] > levels[-1] > 0.95
    assert of_one[0] > of_one[-1] > 0.95


def test_rows_that_are_closed_widen_the_intervals_of_the_others(experiment: Experiment) -> None:
    values = {row: dict(enumerate([1.0 + i, 2.0, 4.0 - i])) for i, row in enumerate("abc")}
    family, wider = (compare(values, promise=Promise(n_closed=n)).family for n in (0, 2))
    assert len(wider.loadings) == len(family.loadings) + 2
    assert (family.slack, wider.slack) == (slack(2, 4), slack(4, 4))
    assert (wider.critical or 0) > (family.critical or 0)


def test_closed_rows_widen_the_intervals_of_a_row_with_the_baselines_weights() -> None:
    values = {"a": {1: 1.0, 2: 2.0, 3: 4.0}, "b": {1: 1.5, 2: 2.0, 3: 5.0}}
    compared = compare(values, trained_by={"b": "a"}, promise=Promise(n_closed=3))
    assert compared.differences["b"].critical == sidak_value(4, 2)


def test_a_row_that_diverges_or_is_the_same_or_negligibly_different_is_decided(
    experiment: Experiment,
) -> None:
    made = records(experiment, offset)
    made["literal", 2] |= {"status": "diverged"}
    weights = {"files": {"model.safetensors": {"sha256": "aa"}}}
    for seed in experiment.seeds:
        for row in ("baseline", "heads_1"):
            made[row, seed] |= weights
        made["heads_1", seed]["test"] = made["baseline", seed]["test"]
    looks = judge(experiment, made)
    assert looks.decided == {"learned": 3, "literal": 3, "heads_1": 3}
    assert looks.n_seeds["baseline"] == 3
    assert looks.comparisons[BLEU].differences["heads_1"].method == "same"
    band = experiment.negligible.model_copy(update={"bleu": 19.0})
    looks = judge(replace(experiment, negligible=band), records(experiment, offset))
    assert looks.decided == dict.fromkeys(("learned", "literal", "heads_1"), 3)


def test_beside_a_baseline_that_diverges_nothing_goes_on(experiment: Experiment) -> None:
    made = records(experiment, offset)
    made["baseline", 1] |= {"status": "diverged"}
    looks = judge(experiment, made)
    assert set(looks.n_seeds.values()) == {3}
    assert "looks" not in made_up.notes(tabulate(experiment, made))


def test_a_failed_run_keeps_its_look_open(experiment: Experiment) -> None:
    made = records(experiment, offset)
    made["heads_1", 4] |= {"status": "failed"}
    looks = judge(experiment, made)
    assert looks.n_looks == 1
    assert looks.n_seeds["heads_1"] == 5


def test_what_a_look_waits_for_is_said(experiment: Experiment) -> None:
    made = records(experiment, offset)
    for seed in experiment.seeds:
        made["heads_1", seed] = made_up.without_result("oom", "no room", "heads_1", seed)
    actual, looks = table(experiment, made)
    waiting = "the look at 3 seeds waits for runs of heads_1 that failed"
    assert looks.n_looks == 0
    assert actual.conclusion == f"There are no verdicts yet: {waiting}."
    notes = made_up.notes(actual)
    assert notes["intervals"] == f"none: {waiting}."
    assert notes["next look"] == f"{waiting}; no other row gets more seeds before."
    assert "next look" in made_up.vital(actual)


def test_verdicts_stand_while_the_next_look_waits(experiment: Experiment) -> None:
    made = records(experiment, offset)
    made["heads_1", 4] = made_up.without_result("failed", "lost", "heads_1", 4)
    actual, looks = table(experiment, made)
    assert looks.n_looks == 1
    assert actual.conclusion == (
        "By BLEU on test, learned is worse than the baseline; 3 seeds cannot tell literal and "
        "heads_1 from it."
    )
    waiting = "the look at 5 seeds waits for runs of heads_1 that failed"
    assert made_up.notes(actual)["next look"].startswith(waiting)


def test_what_is_said_of_a_row_stands_after_later_looks_without_it(experiment: Experiment) -> None:
    made = records(experiment, offset)
    for seed in experiment.seeds:
        for row in ("baseline", "heads_1"):
            made[row, seed]["files"] = {"model.safetensors": {"sha256": f"{seed}"}}
        made["heads_1", seed]["test"] = made["baseline", seed]["test"]
    actual, looks = table(experiment, made)
    assert looks.decided["heads_1"] == 3
    assert looks.n_looks > 1
    text = "heads_1: trained to the last bit as baseline. "
    assert made_up.notes(actual)["same weights"].startswith(text)


def test_rows_that_departed_or_diverged_stay_so_after_later_looks(experiment: Experiment) -> None:
    negligible = experiment.negligible.model_copy(update={"bleu": 0.3})
    made = records(experiment, offset)
    for (row, seed), record in made.items():
        scores = record["test"]["test"]
        if row == "learned":  # far below, with a spread of its own
            scores["bleu"] = -1e4 + 100 * (-1) ** seed
        if row == "literal" and seed == 2:
            record["status"] = "diverged"
    looks = judge(replace(experiment, negligible=negligible), made)
    assert looks.decided == {"learned": 3, "literal": 3}
    assert looks.n_looks > 1
    compared = looks.comparisons[BLEU]
    assert compared.departed == ("learned",)
    assert compared.diverged == ("literal",)
    assert compared.differences["learned"].method == "paired"


def test_expected_runs_are_those_of_all_rows_that_stay_open(experiment: Experiment) -> None:
    """And of the baseline, unless all are decided."""
    looks = judge(experiment, up_to(records(experiment, offset), **dict.fromkeys(OFFSETS, 3)))
    chances = []
    for row in ("literal", "heads_1"):
        each = looks.comparisons[BLEU].differences[row]
        assert each.estimate is not None
        assert each.standard_error is not None
        band = experiment.negligible.bleu
        known = each.estimate, each.standard_error, LOOKS, 3, len(OFFSETS) - 1, band
        chances.append(sequential.chance(*known, later=5))
    one, other = chances
    assert 0 < one < 1
    assert 0 < other < 1
    n_expected = (8 - 5) * (1 - one * other + 1 - one + 1 - other)
    assert looks.n_expected == pytest.approx(n_expected)


def test_of_four_looks_the_runs_after_each_are_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: what one look decides stays decided, however small the chance at a later one."""
    looks, chances = (3, 5, 8, 12), {None: 0.9, 5: 0.5, 8: 0.4}
    calls: list[tuple[int, int | None]] = []

    def chance(*known: Any) -> float:
        _, _, of_looks, n, n_rows, _, later = known
        assert (of_looks, n_rows) == (looks, 3)
        calls.append((n, later))
        return chances[later]

    monkeypatch.setattr(sequential, "levels", lambda looks, _: (0.99,) * len(looks))
    monkeypatch.setattr(sequential, "chance", chance)
    seeds = f"[{', '.join(map(str, range(1, 13)))}]"
    experiment = replace(made_up.experiment(tmp_path, seeds=seeds), looks=looks)
    made = records(experiment, lambda row, seed: 41 - 0.3 * (row == "baseline"))
    three_rows_and_the_baseline = 3 * 0.5 + (1 - 0.5**3)
    for n, n_expected, asked in (
        (3, (8 - 5 + 12 - 8) * three_rows_and_the_baseline, {(3, None), (3, 5), (3, 8)}),
        (5, (12 - 8) * (3 * 0.6 + (1 - 0.4**3)), {(3, None), (5, None), (5, 8)}),
    ):
        calls.clear()
        judged = judge(experiment, up_to(made, **dict.fromkeys(OFFSETS, n)))
        assert judged.n_expected == pytest.approx(n_expected)
        assert set(calls) == asked


def test_rows_beside_a_baseline_that_has_not_learned_are_given_up(experiment: Experiment) -> None:
    made = made_up.records(experiment)
    for (row, seed), record in made.items():
        record["test"]["test"]["bleu"] = 30 + seed / 10 if row == "learned" else 0.0
    actual, looks = table(experiment, made)
    assert looks.decided == {"learned": 3}
    assert looks.given_up == {"literal": 3, "heads_1": 3}
    assert (
        "; given up, as the baseline has hardly learned, with 3" in made_up.notes(actual)["looks"]
    )


@pytest.mark.parametrize(("chance", "n_given_up"), [(0.049, 2), (0.051, 0)])
def test_a_row_is_given_up_that_is_decided_in_fewer_than_5_of_100(
    chance: float, n_given_up: int, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequential, "chance", lambda *_: chance)
    looks = judge(experiment, up_to(records(experiment, offset), **dict.fromkeys(OFFSETS, 3)))
    assert looks.decided == {"learned": 3}
    assert len(looks.given_up) == n_given_up


@pytest.mark.parametrize(("level", "given_up"), [(4.5, {"literal": 3, "heads_1": 3}), (7.5, {})])
def test_a_baseline_has_not_learned_below_twice_the_band(
    level: float, given_up: dict[str, int], experiment: Experiment
) -> None:
    band = experiment.negligible.model_copy(update={"bleu": 3.0})
    made = records(experiment, lambda row, seed: 30 if row == "learned" else level)
    looks = judge(replace(experiment, negligible=band), made)
    assert looks.decided["learned"] == 3
    assert looks.given_up == given_up


def test_the_conclusion_has_the_seeds_of_the_rows_that_it_names(experiment: Experiment) -> None:
    near = records(
        experiment, lambda row, seed: 40 + {"learned": -9.0, "literal": -9.0}.get(row, 0)
    )
    near["literal", 2] |= {"status": "diverged"}
    actual, looks = table(experiment, near)
    assert looks.n_seeds == {"baseline": 8, "learned": 3, "literal": 3, "heads_1": 8}
    assert actual.conclusion == (
        "By BLEU on test, learned is worse than the baseline; 8 seeds cannot tell heads_1 from it; "
        "literal diverged with 1 of 3 seeds."
    )
    note = made_up.notes(actual)["looks"]
    assert note.startswith(
        "decided with 3 seeds: learned; ended by divergence with 3 seeds: literal"
    )


def test_rows_that_were_given_up_early_have_a_range_of_seeds(experiment: Experiment) -> None:
    made = records(experiment, offset)
    actual, looks = table(experiment, made)
    assert actual.results is not None
    early = replace(looks, n_seeds={**looks.n_seeds, "literal": 5})
    rows = [
        replace(row, outcomes=dict.fromkeys(range(1, 1 + early.n_seeds[row.name]), "done"))
        for row in actual.results.summaries
    ]
    compared = actual.results.comparisons[BLEU]
    around_0 = {
        row: replace(each, simultaneous=Interval(-5.0, 5.0))
        for row, each in compared.differences.items()
    }
    comparisons = {BLEU: replace(compared, differences=around_0)}
    results = replace(actual.results, summaries=rows, looks=early, comparisons=comparisons)
    assert conclusion(results) == (
        "By BLEU on test, 3 to 8 seeds cannot tell learned, literal and heads_1 from the baseline."
    )


def table(experiment: Experiment, made: made_up.Records) -> tuple[Table, Looks]:
    actual = tabulate(experiment, made)
    assert actual.results is not None
    return actual, actual.results.looks


def test_the_table_has_the_seeds_that_each_row_has_got(experiment: Experiment) -> None:
    actual, looks = table(experiment, records(experiment, offset))
    assert actual.results is not None
    done = dict(zip(OFFSETS, made_up.texts(actual, "done"), strict=True))
    assert done == {row: f"{n}/{n}" for row, n in looks.n_seeds.items()}
    assert actual.results.verdict("learned", BLEU) is Verdict.WORSE
    learned = next(row for row in actual.results.summaries if row.name == "learned")
    assert list(learned.outcomes) == [1, 2, 3]
    assert len(learned.metrics[BLEU].values) == 3
    note = made_up.notes(actual)["looks"]
    assert note.startswith(
        "decided with 3 seeds: learned; with 5 seeds: literal; this saved 8 runs; the mean of the "
        "baseline is over all seeds, each difference over those of its row; "
    )
    assert "looks" in made_up.vital(actual)
    pooled = "The error of one run, pooled over the rows of the last look, has a standard"
    assert pooled in made_up.notes(actual)["intervals"]
    printed = re.sub(r"^%.*$", "", render(actual, "latex"), flags=re.MULTILINE)
    assert "looks: decided with 3 seeds: learned" in printed  # beside `seeds`, which are of some


def test_a_look_that_decides_no_row_says_so(experiment: Experiment) -> None:
    made = records(experiment, lambda row, seed: 40 + 1.0 * (row != "baseline"))
    actual, looks = table(experiment, up_to(made, **dict.fromkeys(OFFSETS, 3)))
    assert (looks.decided, looks.given_up) == ({}, {})
    assert made_up.notes(actual)["looks"].startswith(
        "no row is decided; the mean of the baseline is over all seeds, each difference over those "
        "of the last look at its row; "
    )
    assert "pooled over rows, has" in made_up.notes(actual)["intervals"]


def test_a_table_between_two_looks_is_that_of_the_last(experiment: Experiment) -> None:
    made = records(experiment, offset)
    some = up_to(made, baseline=5, learned=3, literal=5, heads_1=4)
    actual, _ = table(experiment, some)
    assert actual.results is not None
    assert dict(zip(OFFSETS, made_up.texts(actual, "done"), strict=True))["heads_1"] == "4/5"
    three = up_to(made, **dict.fromkeys(OFFSETS, 3))
    at_first = tabulate(experiment, three)
    assert at_first.results is not None
    for row in ("learned", "literal", "heads_1"):
        ours, theirs = (each.results.difference(row, BLEU) for each in (actual, at_first))  # type: ignore[union-attr]
        assert ours == theirs
    notes = made_up.notes(actual)
    assert "each difference over those of the last look at its row; " in notes["looks"]
    assert "least squares" not in notes["†"]
    assert "; 3 seeds cannot tell literal and heads_1 from it." in actual.conclusion
