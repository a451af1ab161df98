"""Every row has an error between its own and the pooled one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from ablate.analysis.dunnett import Family
from ablate.analysis.spreads import (
    _SLACK,
    ROWS,
    SEEDS,
    _own,
    errors,
    prior_df,
    slack,
)
from ablate.analysis.two_way import two_way


def tables(n: int, rows: int, seeds: int, *spreads: float) -> np.ndarray:
    rng, own = np.random.default_rng((n, rows, seeds)), np.ones((rows, 1))
    own[: len(spreads), 0] = spreads
    return rng.standard_normal((n, rows, seeds)) * own + rng.standard_normal((n, 1, seeds))


def trigamma(x: float) -> float:
    return float(special.polygamma(1, x))


def test_the_slack_is_in_the_constant_and_in_the_p_value_alike() -> None:
    family, plain = (Family((0.5**0.5,) * 4, 8, slack=slack) for slack in (1.5, 1.0))
    assert family.critical is not None
    assert plain.critical is not None
    assert family.critical < plain.critical
    assert family.p_of(family.critical, 8) == pytest.approx(0.05)
    assert family.p_of(0.0, 8) == pytest.approx(1)


@pytest.mark.parametrize(("n_rows", "n_seeds"), [(3, 2), (6, 2), (6, 4)])
@pytest.mark.parametrize("spreads", [(1.0, 1.0), (1.0, 9.0), (5.0, 1.0), (0.1, 1.0)])
def test_a_variance_lies_between_the_rows_own_and_the_pooled_one(
    spreads: tuple[float], n_rows: int, n_seeds: int
) -> None:
    """Of a whole table, the mean square within a row follows from its residuals."""
    model = two_way(np.ones((n_rows, n_seeds), bool))
    values = tables(1, n_rows, n_seeds, *spreads)[0]
    actual = errors(model, values)
    df, pooled = n_seeds - 1, float(model.variance(values))
    own = (model.residuals(values) ** 2).sum(axis=1) * n_rows / (n_rows - 1) / df
    prior = float(prior_df(own / pooled, np.full(n_rows, df)).item())
    for row in range(1, n_rows):
        ours = (prior * pooled + df * own[row]) / (prior + df)
        half = df / 2
        theirs = (half * pooled + df * own[0]) / (half + df)
        assert actual.standard[row - 1] ** 2 == pytest.approx((ours + theirs) / n_seeds)
        parts = ours**2 / min(prior + df, model.df) + theirs**2 / min(half + df, model.df)
        assert actual.df[row - 1] == pytest.approx(min((ours + theirs) ** 2 / parts, model.df))


def test_the_prior_follows_from_how_far_apart_the_spreads_lie() -> None:
    """By Smyth 2004: trigamma(prior / 2) is the variance of the logarithms of the variances."""
    n, df = 3000, np.full(3000, 4)
    for variance in (0.0, 0.3, 1.0):
        rng = np.random.default_rng(1)
        ratios = np.exp(np.sqrt(variance) * rng.standard_normal((20, n)))
        ratios *= rng.chisquare(4, ratios.shape) / 4
        priors = prior_df(ratios / ratios.mean(axis=1, keepdims=True), df)
        seen = special.polygamma(1, priors / 2).mean()
        expected = (10 * 0.5 + n * variance) / (10 + n)
        assert seen == pytest.approx(expected, abs=0.05)
    one = prior_df(np.array([0.5, 1.5]), np.array([2, 8])).item()
    squares = np.mean([0.25 / 2, 2.25 / 1.25])
    apart = (10 * 0.5 + np.log(squares)) / (10 + 1)
    assert trigamma(one / 2) == pytest.approx(apart, rel=1e-12)


def test_a_table_of_many_rows_that_spread_alike_has_nearly_the_pooled_error() -> None:
    model = two_way(np.ones((200, 5), bool))
    values = np.random.default_rng(0).standard_normal((200, 5))
    values -= values.mean(axis=1, keepdims=True)
    values /= values.std(axis=1, keepdims=True)  # each row has the same variance
    actual = errors(model, values)
    pooled = np.sqrt(float(model.variance(values)) * 2 / 5)
    assert actual.standard == pytest.approx([pooled] * 199, rel=0.03)


def test_no_error_has_more_degrees_of_freedom_than_the_model() -> None:
    """Satterthwaite's formula gives two errors of like size nearly the sum of theirs."""
    model = two_way(np.ones((4, 4), bool))
    actual = errors(model, tables(2000, 4, 4, 4, 4))
    assert actual.df.max() == model.df
    assert actual.df.min() < model.df


@pytest.mark.parametrize(
    ("rows", "seeds", "of_baseline", "most"),
    [(5, 3, 1.0, 0.05), (5, 3, 2.0, 0.065), (16, 5, 2.0, 0.065), (16, 3, 1.0, 0.05)],
)
def test_no_more_tables_are_wrong_than_promised(
    rows: int, seeds: int, of_baseline: float, most: float
) -> None:
    n, k = 20_000, rows - 1
    model = two_way(np.ones((rows, seeds), bool))
    values = tables(n, rows, seeds, of_baseline)
    actual = errors(model, values)
    family = Family((0.5**0.5,) * k, model.df, slack=slack(k, model.df))
    assert family.critical is not None
    rarely = special.stdtr(model.df, -family.critical)
    critical = -special.stdtrit(actual.df, rarely)  # as of `Family.critical_of`
    wrong = (np.abs(model.differences(values)) > critical * actual.standard).any(axis=1).mean()
    assert wrong < most + 3 * np.sqrt(most / n)
    assert wrong > 0.6 * most  # and few fewer
    assert family.critical_of(7.0) == pytest.approx(-special.stdtrit(7.0, rarely))


@pytest.mark.parametrize("n_rows", [1, 4, 15, 200])
def test_with_many_seeds_there_is_no_slack(n_rows: int) -> None:
    assert slack(n_rows, n_rows * 10.0**6) == pytest.approx(1, abs=1e-4)
    assert n_rows > 1 or slack(1, 2) == 1.0  # two rows have Student's interval


@pytest.mark.parametrize("n_seeds", [2, 3, 8])
def test_two_rows_have_the_pooled_error(n_seeds: int) -> None:
    model, values = two_way(np.ones((2, n_seeds), bool)), tables(50, 2, n_seeds, 1, 30)
    actual = errors(model, values)
    pairs = values[:, 1] - values[:, 0]
    assert actual.standard[:, 0] == pytest.approx(pairs.std(axis=1, ddof=1) / np.sqrt(n_seeds))
    assert (actual.df == n_seeds - 1).all()


def test_a_row_of_one_run_has_all_of_its_error_and_the_pooled_variance() -> None:
    observed = np.ones((6, 4), bool)
    observed[1, 1:] = observed[-1, -1] = False
    values = tables(1, 6, 4, 9)[0]
    model = two_way(observed)
    actual = errors(model, values)
    ratios, df = model.departures(values)
    assert df.tolist() == [3, 0, 3, 3, 3, 2]
    pooled = float(model.variance(values))
    own = pooled * model.df * ratios[0] / (model.df - 3 + 3 * ratios[0])
    half = 3 / 2
    base = (half * pooled + 3 * own) / (half + 3)
    share = (1.0, 1 / 4)  # of the row of one run, and of the baseline
    expected = model.covariance[0, 0] * (share[0] * pooled + share[1] * base) / sum(share)
    assert actual.standard[0] ** 2 == pytest.approx(expected)
    assert 3 < actual.df[0] <= model.df


def test_at_the_sizes_that_were_simulated_the_slack_is_the_simulated_one() -> None:
    assert len(SEEDS) == len(_SLACK)
    for seeds, of_rows in zip(SEEDS, _SLACK, strict=True):
        for n_rows, simulated in zip(ROWS, of_rows, strict=True):
            assert slack(n_rows, n_rows * (seeds - 1)) == pytest.approx(simulated, abs=1e-9)
    low, high = _SLACK[1][4], _SLACK[1][5]  # of 6 and 10 rows with 3 seeds
    between = low + (high - low) * np.log(8 / 6) / np.log(10 / 6)
    assert slack(8, 16.0) == pytest.approx(between)


@pytest.mark.parametrize(
    ("n_rows", "n_seeds", "constant"), [(4, 3, 3.30), (15, 5, 2.87), (110, 5, 3.28)]
)
def test_the_documented_constants(n_rows: int, n_seeds: int, constant: float) -> None:
    df = n_rows * (n_seeds - 1)
    family = Family((0.5**0.5,) * n_rows, df, slack=slack(n_rows, df))
    assert family.critical == pytest.approx(constant, abs=0.005)


@pytest.mark.parametrize("middle", [1.0, 8.0])  # with which nothing at all is left for the others
def test_rows_without_any_error_beside_one_that_has_all(middle: float) -> None:
    """Of residuals -d / 4 three times, and 3 d / 4: 1 / 3 of the pooled variance, and 3 times."""
    values = np.array([*[[1.0, 2.0, 3.0]] * 3, [4.0, middle, 9.0]])
    model = two_way(np.ones((4, 3), bool))
    found = errors(model, values)
    pooled = float(model.variance(values))
    prior = prior_df(np.array([1 / 3, 1 / 3, 1 / 3, 3.0]), np.full(4, 2)).item()
    moderated, base = (prior + 2 * 3) / (prior + 2) * pooled, (1 + 2 / 3) / 3 * pooled
    assert found.standard[-1] ** 2 == pytest.approx((moderated + base) / 3)
    twice = np.array([*[[1.0, 2.0]] * 3, [4.0, 8.0]])
    of_two = two_way(np.ones((4, 2), bool))
    (*_, own), df = _own(of_two, twice, of_two.variance(twice))
    assert (own, *df) == (pytest.approx(3 * of_two.variance(twice)), 1, 1, 1, 1)
    nothing = errors(model, np.tile([1.0, 2.0, 3.0], (4, 1)))
    assert (nothing.standard == 0).all()
    assert (nothing.df == model.df).all()
