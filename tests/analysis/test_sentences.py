"""Scores from statistics of sentences against sacreBLEU, and crossed variances against draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from ablate.analysis.sentences import bleu, chrf, crossed_error, influences, ratio

Floats = NDArray[np.float64]


def made_up(n: int = 40, seed: int = 0) -> tuple[list[str], list[str]]:
    """Translations of some words each, and references that a few of them differ from."""
    rng = np.random.default_rng(seed)
    words = np.array(["ma", "tuli", "serim", "vo", "kelat", "ninu", "orr", "basid", ",", "."])
    references = [" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(n)]
    changed = [
        " ".join(w if rng.random() > 0.15 else str(rng.choice(words)) for w in line.split())
        for line in references
    ]
    return changed, references


def statistics_of(metric: Any, ours: list[str], theirs: list[str]) -> Floats:
    actual = metric._extract_corpus_statistics(ours, [theirs])
    return np.array(actual, dtype=np.float64)


@pytest.mark.parametrize("metric", [BLEU(force=True), CHRF()], ids=["bleu", "chrf"])
def test_scores_are_sacrebleus(metric: Any) -> None:
    ours, theirs = made_up()
    score = bleu if isinstance(metric, BLEU) else chrf
    actual = statistics_of(metric, ours, theirs)
    assert score(actual.sum(axis=0)) == pytest.approx(metric.corpus_score(ours, [theirs]).score)
    without = score(actual.sum(axis=0) - actual)
    for at in (0, 7, 39):
        rest = [line for i, line in enumerate(ours) if i != at]
        refs = [line for i, line in enumerate(theirs) if i != at]
        assert without[at] == pytest.approx(metric.corpus_score(rest, [refs]).score)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("a b c d", "a b x y"),  # no match of the orders 3 and 4: smoothed
        ("a x b y", "a b c d"),
        ("a x y z", "a b c d"),  # one match
        ("x y z w", "a b c d"),  # no match at all
        ("a b", "a b c d"),  # shorter than four words
        ("", "a b c d"),
        ("a b c d e f", "a b c d"),
        ("a b c d e", "a b c d e f g h"),  # a penalty for brevity alone
        ("a long translation", "a"),  # orders that one side does not have
        ("a long translation", "ab"),  # orders that one side does not have
    ],
)
def test_scores_of_next_to_nothing_are_sacrebleus(ours: str, theirs: str) -> None:
    for metric, score in ((BLEU(force=True), bleu), (CHRF(), chrf)):
        actual = statistics_of(metric, [ours], [theirs])
        expected = metric.corpus_score([ours], [[theirs]]).score
        assert score(actual.sum(axis=0)) == pytest.approx(expected)


def test_the_jackknife_of_a_mean_is_the_deviation_from_it() -> None:
    values = np.random.default_rng(1).normal(size=30)
    statistics = np.stack([values, np.ones(30)], axis=1)
    np.testing.assert_allclose(influences(statistics, ratio), values - values.mean())


def test_the_jackknife_of_bleu_is_about_the_bootstraps() -> None:
    actual = statistics_of(BLEU(force=True), *made_up(400))
    rng = np.random.default_rng(0)
    weights = rng.multinomial(400, np.full(400, 1 / 400), 4000).astype(float)
    resampled = bleu(weights @ actual).std(ddof=1)
    jackknife = np.sqrt(influences(actual, bleu).var(ddof=1) / 400)
    assert jackknife == pytest.approx(resampled, rel=0.05)


def draws(rng: np.random.Generator, n_seeds: int, n_sentences: int, *sds: float) -> Floats:
    """Differences by seed and sentence with these deviations: seeds, sentences, both."""
    of_seed, of_sentence, of_both = sds
    return (
        rng.normal(0, of_seed, (n_seeds, 1))
        + rng.normal(0, of_sentence, n_sentences)
        + rng.normal(0, of_both, (n_seeds, n_sentences))
    )


def test_sentences_that_every_seed_sees_anew_add_nothing() -> None:
    rng = np.random.default_rng(6)
    errors = [crossed_error(0.5, 16, draws(rng, 5, 200, 0.0, 0.0, 3.0)) for _ in range(40)]
    alone = [df for error, df in errors if error == min(errors)[0] == 0.5]
    assert 10 < len(alone) < 30  # the estimate is below 0 half the time
    assert set(alone) == {16}


def test_one_seed_takes_all_of_the_variance_for_the_sentences() -> None:
    differences = draws(np.random.default_rng(7), 1, 50, 0.0, 1.0, 1.0)
    expected = differences.var(axis=1, ddof=1)[0] / 50
    assert crossed_error(0.0, 1, differences)[0] ** 2 == pytest.approx(expected)


def test_what_is_lost_in_noise_has_one_degree_of_freedom() -> None:
    draw = np.random.default_rng(0)
    dfs = [crossed_error(1e-6, 8.0, draw.normal(0, 50, (5, 300)))[1] for _ in range(50)]
    assert min(dfs) == 1


@pytest.mark.parametrize("n_seeds", [2, 5])
def test_new_sentences_add_to_the_error_by_satterthwaite(n_seeds: int) -> None:
    """Of the mean over seeds, what the sentences share adds; of each part, I - 1 are free."""
    differences = draws(np.random.default_rng(3), n_seeds, 60, 0.0, 1.0, 0.5)
    error, degrees = crossed_error(0.3, 7.0, differences)
    n_sentences = differences.shape[1]
    covariance = np.cov(differences) / n_sentences  # of seeds
    between = covariance[~np.eye(n_seeds, dtype=bool)].mean()
    assert error == pytest.approx(math.sqrt(0.3**2 + between))
    mean = np.var(differences.mean(axis=0), ddof=1) / n_sentences
    each = np.trace(covariance) / n_seeds
    noise = (mean * n_seeds / (n_seeds - 1)) ** 2 + (each / (n_seeds - 1)) ** 2
    df = (0.3**2 + between) ** 2 / (0.3**4 / 7 + noise / (n_sentences - 1))
    assert degrees == pytest.approx(df)
