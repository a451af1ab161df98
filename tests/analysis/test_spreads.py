"""Rows whose spread stands out have wider intervals than the pooled error gives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from ablate.analysis.dunnett import Family
from ablate.analysis.spreads import (
    _SLACK,
    PRIOR_DF,
    ROWS,
    SEEDS,
    STANDING_OUT_LEVEL,
    errors,
    slack,
)
from ablate.analysis.two_way import two_way


def tables(n: int, rows: int, seeds: int, *spreads: float) -> np.ndarray:
    rng, own = np.random.default_rng((n, rows, seeds)), np.ones((rows, 1))
    own[: len(spreads), 0] = spreads
    return rng.standard_normal((n, rows, seeds)) * own + rng.standard_normal((n, 1, seeds))


def test_the_slack_is_in_the_constant_and_in_the_p_value_alike() -> None:
    family, plain = (Family((0.5**0.5,) * 4, 8, slack=slack) for slack in (1.5, 1.0))
    assert family.critical is not None
    assert plain.critical is not None
    assert family.critical < plain.critical
    assert family.p(family.critical) == pytest.approx(0.05)
    assert family.p(0.0) == pytest.approx(1)


def test_without_any_the_error_is_the_pooled_one() -> None:
    model = two_way(np.ones((5, 4), bool))
    values = tables(200, 5, 4)
    actual = errors(model, values)
    plain = ~actual.stand_out.any(axis=1)
    pooled = np.sqrt(model.variance(values) * 2 / 4)
    assert plain.sum() > 40
    assert np.allclose(actual.standard[plain], pooled[plain, None])
    assert (actual.df[plain] == model.df).all()


def test_the_variance_lies_between_the_rows_own_and_the_pooled_one() -> None:
    """Of a whole table, the mean square within a row follows from its residuals."""
    n_rows, n_seeds = 6, 4
    model = two_way(np.ones((n_rows, n_seeds), bool))
    values = tables(1, n_rows, n_seeds, 1, 9)[0]
    actual = errors(model, values)
    assert actual.stand_out.tolist() == [False, True, False, False, False, False]
    own = (model.residuals(values)[1] ** 2).sum() * n_rows / (n_rows - 1) / (n_seeds - 1)
    pooled = float(model.variance(values))
    assert own > pooled
    df = n_seeds - 1
    ours = (PRIOR_DF * pooled + df * own) / (PRIOR_DF + df)
    assert actual.standard[0] ** 2 == pytest.approx((ours + pooled) / n_seeds)
    satterthwaite = (ours + pooled) ** 2 / (ours**2 / (PRIOR_DF + df) + pooled**2 / model.df)
    assert actual.df[0] == pytest.approx(min(satterthwaite, model.df))


def test_with_two_seeds_no_row_that_stands_out_has_a_narrower_interval() -> None:
    """There the level of the test is passed by some rows that spread less than the others."""
    model = two_way(np.ones((6, 2), bool))
    values = tables(2000, 6, 2)
    actual = errors(model, values)
    pooled = np.sqrt(model.variance(values))[:, None]
    departures = model.departures(values)[0]
    assert (actual.stand_out & (departures < 1)).any()
    assert (actual.standard >= pooled * (1 - 1e-12)).all()


def test_a_baseline_that_stands_out_widens_every_interval() -> None:
    actual = errors(two_way(np.ones((6, 4), bool)), tables(1, 6, 4, 9)[0])
    assert actual.are_wider.all()
    assert (actual.df < 15).all()


def test_no_error_has_more_degrees_of_freedom_than_the_model() -> None:
    """Satterthwaite's formula gives two errors of like size nearly the sum of theirs."""
    model = two_way(np.ones((4, 4), bool))
    actual = errors(model, tables(2000, 4, 4, 4, 4))
    assert actual.are_wider.any()
    assert actual.df.max() == model.df


def test_the_level_of_a_row_follows_from_the_runs_it_has() -> None:
    observed = np.ones((6, 4), bool)
    observed[1, 2:] = observed[2, 1:] = False
    values = np.where(observed, tables(1, 6, 4)[0], np.nan)
    levels = STANDING_OUT_LEVEL / np.array([3, 1, 1, 3, 3, 3])
    assert errors(two_way(observed), values).levels == pytest.approx(levels)


@pytest.mark.parametrize(("rows", "seeds"), [(5, 3), (16, 3)])
def test_of_tables_whose_rows_spread_alike_5_percent_are_wrong(rows: int, seeds: int) -> None:
    """Without the slack it would be 3.8% and 3.4%; 20,000 tables tell them apart."""
    n, k = 20_000, rows - 1
    model = two_way(np.ones((rows, seeds), bool))
    values = tables(n, rows, seeds)
    actual = errors(model, values)
    family = Family((0.5**0.5,) * k, model.df, slack=slack(k, model.df))
    assert family.critical is not None
    rarely = special.stdtr(model.df, -family.critical)
    critical = -special.stdtrit(actual.df, rarely)  # as of `Family.critical_separate`
    wrong = (np.abs(model.differences(values)) > critical * actual.standard).any(axis=1).mean()
    assert wrong == pytest.approx(0.05, abs=0.0046)  # three Monte Carlo errors
    assert family.critical_separate(7.0) == pytest.approx(-special.stdtrit(7.0, rarely))


@pytest.mark.parametrize("n_rows", [1, 4, 15, 200])
def test_the_more_seeds_the_less_slack(n_rows: int) -> None:
    values = [slack(n_rows, n_rows * (seeds - 1)) for seeds in (3, 5, 10, 40, 10**6)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1, abs=1e-4)
    assert n_rows > 1 or set(values) == {1.0}  # two rows cannot stand out from one another


def test_two_rows_cannot_stand_out_from_one_another() -> None:
    actual = errors(two_way(np.ones((2, 3), bool)), tables(50, 2, 3, 1, 30))
    assert not actual.stand_out.any()


def test_a_row_of_one_run_has_all_of_its_error() -> None:
    """Beside a baseline of four runs that stands out: a whole variance and a quarter."""
    observed = np.ones((6, 4), bool)
    observed[1, 1:] = False
    values = tables(1, 6, 4, 9)[0]
    model = two_way(observed)
    actual = errors(model, values)
    assert actual.stand_out[:2].tolist() == [True, False]
    pooled, covariance = float(model.variance(values)), np.diag(model.covariance)
    of_one, of_four = actual.standard[0] ** 2, actual.standard[1] ** 2
    share = (1.0, 1 / 4)  # of the row of one run, and of the baseline
    base = (of_four / covariance[1] - pooled / 2) * 2  # two rows of four runs share it equally
    expected = covariance[0] * (share[0] * pooled + share[1] * base) / sum(share)
    assert of_one == pytest.approx(expected)
    assert 3 < actual.df[0] <= model.df


def test_at_the_sizes_that_were_simulated_the_slack_is_the_simulated_one() -> None:
    for seeds, of_rows in zip(SEEDS, _SLACK, strict=True):
        for n_rows, simulated in zip(ROWS, of_rows, strict=True):
            assert slack(n_rows, n_rows * (seeds - 1)) == pytest.approx(simulated, abs=1e-9)
    between = slack(8, 16.0)
    assert between == pytest.approx(1.42 + 0.03 * np.log(8 / 6) / np.log(10 / 6))


def test_a_row_beside_rows_without_any_error_has_a_variance_of_its_own() -> None:
    values = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [4.0, 1.0, 9.0]])
    model = two_way(np.ones((4, 3), bool))
    found = errors(model, values)
    assert found.stand_out.tolist() == [False, False, False, True]
    pooled = float(model.variance(values))
    own = pooled * model.df / 2  # all of the squares are the row's, which has two degrees
    moderated = (PRIOR_DF * pooled + 2 * own) / (PRIOR_DF + 2)
    assert found.standard[-1] ** 2 == pytest.approx((moderated + pooled) / 3)
    assert found.standard[0] ** 2 == pytest.approx(2 * pooled / 3)
