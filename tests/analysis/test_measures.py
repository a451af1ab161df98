"""Measures: which are compared, intervals for new sentences, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ablate.analysis.measures import Verdict, comparisons, direction, higher_is_better, verdict
from ablate.analysis.sentences import bleu, chrf, crossed_error
from ablate.analysis.statistics import Interval
from ablate.analysis.summary import summarise
from ablate.gate.evidence import LOSSES
from ablate.measuring import SentenceStatistics

SEEDS = (1, 2, 3, 4)
Records = dict[tuple[str, int], dict[str, Any]]
N = 60


def statistics_of(row: str, seed: int) -> SentenceStatistics:
    """Statistics of made-up sentences, some of which the row b finds hard with every seed."""
    common = np.random.default_rng(0)
    lengths = common.integers(5, 15, N)
    hard = (row == "b") * np.maximum(common.normal(0, 0.5, N), 0.0)
    rng = np.random.default_rng([len(row), seed])
    wrong = np.minimum(rng.poisson(1 + 4 * hard, N), lengths - 4)
    matches = np.stack([np.maximum(lengths - n * wrong - n, 0) for n in range(4)], axis=1)
    totals = np.stack([lengths - n for n in range(4)], axis=1)
    bleu = np.concatenate([lengths[:, None], lengths[:, None], matches, totals], axis=1)
    chrf = np.tile([30, 30, 20], (N, 6)) + rng.integers(0, 5, (N, 18))
    chrf[:, 2::3] -= (hard > 0)[:, None] * 10
    nll = lengths * (0.5 + 0.5 * hard + 0.05 * rng.normal(size=N))
    return SentenceStatistics(bleu, chrf, 5 * lengths, lengths, nll)


def records(rows: tuple[str, ...] = ("baseline", "a", "b", "c")) -> Records:
    rng = np.random.default_rng(3)
    return {
        (row, seed): {
            "status": "done",
            "error": None,
            "params": {"total": 100.0},
            "train": {"steps": 10},
            "dev": {"nll": rng.normal(1, 0.1), "perplexity": 2.0},
            "test": {
                "test": {
                    "bleu": rng.normal(40, 1),
                    "chrf": rng.normal(60, 1),
                    "nll": rng.normal(1, 0.1),
                    "n_sentences": N,
                }
            },
        }
        for row in rows
        for seed in SEEDS
    }


def test_scores_and_losses_are_compared_and_nothing_else() -> None:
    rows = summarise(["baseline", "a", "b", "c"], SEEDS, records())
    actual = comparisons(rows)
    assert list(actual) == ["dev.nll", "test.test.bleu", "test.test.chrf", "test.test.nll"]
    assert all(list(each.differences) == ["a", "b", "c"] for each in actual.values())
    assert [higher_is_better(name) for name in actual] == [False, True, True, False]


def test_a_divergence_is_0_in_a_score_and_nothing_in_a_loss() -> None:
    some = records()
    some["a", 2] = {"status": "diverged", "error": "the loss became NaN"}
    actual = comparisons(summarise(["baseline", "a", "b", "c"], SEEDS, some))
    score, loss = (actual[f"test.test.{kind}"].differences["a"] for kind in ("bleu", "nll"))
    assert (score.method, score.n) == ("divergence as 0", 4)
    assert (loss.method, loss.n) == ("none", 3)
    assert actual["test.test.bleu"].diverged == ("a",)


def test_a_divergence_is_0_in_a_score_of_a_plugin() -> None:
    some = records()
    for record in some.values():
        record["test"]["test"]["mine"] = 3.0
    some["a", 2] = {"status": "diverged", "error": "the loss became NaN"}
    rows = summarise(["baseline", "a", "b", "c"], SEEDS, some)
    each = comparisons(rows, metrics=["mine"])["test.test.mine"].differences["a"]
    assert (each.method, each.estimate) == ("divergence as 0", -0.75)


Score = Callable[[SentenceStatistics, NDArray[np.bool_]], float]
"""Of the sentences that are kept."""
SCORES: dict[str, Score] = {
    "bleu": lambda each, kept: float(bleu(each.bleu[kept].sum(axis=0))),
    "chrf": lambda each, kept: float(chrf(each.chrf[kept].sum(axis=0))),
    "nll": lambda each, kept: float(each.nll[kept].sum() / each.target_tokens[kept].sum()),
    "bits_per_character": lambda each, kept: float(
        each.nll[kept].sum() / math.log(2) / each.characters[kept].sum()
    ),
}


def jackknife(score: Score, row: str, seed: int) -> NDArray[np.float64]:
    """Return how much each sentence moves a score, (N,), by leaving it out."""
    each, at = statistics_of(row, seed), np.arange(N)
    without = np.array([score(each, at != left_out) for left_out in at])
    return (N - 1) * (without.mean() - without)


@pytest.mark.parametrize("kind", SCORES)
def test_intervals_for_new_sentences_add_what_the_sentences_owe(kind: str) -> None:
    some = records()
    for record in some.values():
        record["test"]["test"]["bits_per_character"] = record["test"]["test"]["nll"] / 3
    sentences = {run: {"test": statistics_of(*run)} for run in some}
    rows = summarise(["baseline", "a", "b", "c"], SEEDS, some)
    plain, actual = comparisons(rows), comparisons(rows, sentences)
    compared, n_wider = actual[f"test.test.{kind}"], 0
    for row, each in compared.differences.items():
        assert each.with_sentences is not None
        assert each.estimate is not None
        assert each.standard_error is not None
        assert each.df is not None
        of_seeds = [
            jackknife(SCORES[kind], row, s) - jackknife(SCORES[kind], "baseline", s) for s in SEEDS
        ]
        error, df = crossed_error(each.standard_error, each.df, np.stack(of_seeds))
        n_wider += error > 1.001 * each.standard_error
        constant = compared.family.critical_of(df)
        low, high = (each.estimate + sign * constant * error for sign in (-1, 1))
        ends = each.with_sentences.low, each.with_sentences.high
        assert ends == pytest.approx((low, high), rel=2e-3)  # degrees of freedom have three digits
        assert plain[f"test.test.{kind}"].differences[row].with_sentences is None
    assert n_wider, "new sentences add nothing"
    assert all(each.with_sentences is None for each in actual["dev.nll"].differences.values())


def test_a_test_of_one_sentence_says_nothing_of_new_ones() -> None:
    sentences = {
        run: {"test": SentenceStatistics(*(x[:1] for x in vars(statistics_of(*run)).values()))}
        for run in records()
    }
    rows = summarise(["baseline", "a", "b", "c"], SEEDS, records())
    actual = comparisons(rows, sentences)["test.test.nll"].differences
    assert all(each.with_sentences is None for each in actual.values())


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_seed_without_its_sentences_or_with_others_leaves_no_interval(is_missing: bool) -> None:
    sentences = {run: {"test": statistics_of(*run)} for run in records()}
    sentences["a", 2] = {
        "test": SentenceStatistics(
            *(counts[:-1] for counts in vars(sentences["a", 2]["test"]).values())
        )
    }
    if is_missing:
        del sentences["a", 2]
    rows = summarise(["baseline", "a", "b", "c"], SEEDS, records())
    actual = comparisons(rows, sentences)["test.test.bleu"].differences
    assert actual["a"].with_sentences is None
    assert actual["b"].with_sentences is not None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2, 3.0, "better"),
        (-3.0, -0.2, "worse"),
        (-0.4, 0.9, "no difference"),
        (0.1, 0.9, "no difference"),
        (-0.4, 1.0, "cannot tell"),
        (-1.0, 0.4, "cannot tell"),
        (-5.0, 7.0, "cannot tell"),
        (0.0, 2.0, "cannot tell"),
    ],
)
def test_each_verdict(low: float, high: float, expected: str) -> None:
    assert verdict(Interval(low, high), 1.0) == expected
    assert verdict(None, 1.0) is None


def test_nothing_is_no_difference_beside_a_baseline_with_nothing_to_lose() -> None:
    assert verdict(Interval(-0.2, 0.3), 1.0, baseline=2.0) is Verdict.NO_DIFFERENCE
    assert verdict(Interval(-0.2, 0.3), 1.0, baseline=1.9) is Verdict.CANNOT_TELL
    assert verdict(Interval(1.5, 3.0), 1.0, baseline=0.0) is Verdict.BETTER


def test_of_losses_less_is_better() -> None:
    assert verdict(Interval(0.1, 0.2), 0.02, higher_is_better=False) is Verdict.WORSE
    assert verdict(Interval(-0.2, -0.1), 0.02, higher_is_better=False) is Verdict.BETTER


@given(st.floats(-9, 9), st.floats(0, 9))
def test_without_a_band_every_interval_around_0_cannot_tell(low: float, width: float) -> None:
    actual = verdict(Interval(low, low + width), 0.0)
    assert (actual is Verdict.CANNOT_TELL) == (low <= 0 <= low + width)


@pytest.mark.parametrize(
    ("measure", "better"),
    [
        ("test.test2016.bleu", "higher"),
        ("test.test2016.bleu_lc_tok", "higher"),
        ("test.test.chrf", "higher"),
        ("test.test_long.exact_match", "higher"),
        ("dev.nll", "lower"),
        ("test.test.bits_per_character", "lower"),
        (LOSSES, "lower"),
        ("test.test.perplexity", "lower"),
        ("train.best_dev_nll", "lower"),
        ("train.final_loss", "lower"),
        ("train.seconds", "lower"),
        ("params.total", "lower"),
        ("flops.train", "lower"),
        ("train.steps", None),
    ],
)
def test_which_way_is_better_is_known_of_most_measures(measure: str, better: Any) -> None:
    assert direction(measure) == better


def test_more_of_an_unknown_measure_is_better_in_a_comparison() -> None:
    assert direction("test.test.comet") is None
    assert higher_is_better("test.test.comet")
    assert not higher_is_better("test.test.nll")
