"""The additive model against plain least squares and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ablate.analysis.two_way import TwoWay

Floats = NDArray[np.float64]


def table(n_rows: int, n_seeds: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_seeds)) + 3 * rng.normal(size=n_seeds) + 40


def columns(observed: NDArray[np.bool_]) -> Floats:
    """The design matrix of the observed cells: an indicator for each row and each seed."""
    rows, seeds = np.nonzero(observed)
    n_rows, n_seeds = observed.shape
    of_rows, of_seeds = rows[:, None] == np.arange(n_rows), seeds[:, None] == np.arange(n_seeds)
    return np.concatenate([of_rows, of_seeds], axis=1).astype(float)


def squares(values: Floats, observed: NDArray[np.bool_]) -> tuple[float, int]:
    model, y = columns(observed), values[observed]
    solution, _, rank, _ = np.linalg.lstsq(model, y, rcond=1e-10)
    return float(((y - model @ solution) ** 2).sum()), len(y) - int(rank)


patterns = st.tuples(st.integers(3, 6), st.integers(2, 5)).flatmap(
    lambda shape: st.lists(
        st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


def test_a_whole_table_has_the_textbook_variance() -> None:
    values = table(5, 3)
    model = TwoWay(np.ones((5, 3), dtype=bool))
    centred = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
    assert model.df == 4 * 2
    assert model.variance(values) == pytest.approx((centred**2).sum() / 8)
    means = values.mean(axis=1)
    np.testing.assert_allclose(model.differences(values), means[1:] - means[0])
    expected = np.full((4, 4), 1 / 3) + np.eye(4) / 3  # 2 / n, and 1 / n for what they share
    np.testing.assert_allclose(model.covariance, expected)


@given(patterns)
@settings(max_examples=60, deadline=None)
def test_missing_cells_are_least_squares(pattern: list[list[bool]]) -> None:
    observed = np.array(pattern)
    values = table(*observed.shape)
    model = TwoWay(observed)
    expected, df = squares(values, observed)
    assert model.df == df
    assert (model.residuals(values) ** 2).sum() == pytest.approx(expected, abs=1e-9)
    if df:
        assert model.variance(values) == pytest.approx(expected / df, abs=1e-9)
    ratios, df_of_rows = model.departures(values)
    for row in range(len(observed)):
        without = observed.copy()
        without[row] = False
        rest, df_rest = squares(values, without)
        assert df_of_rows[row] == df - df_rest
        if df_rest and df > df_rest and rest > 1e-9:
            expected_ratio = ((expected - rest) / (df - df_rest)) / (rest / df_rest)
            assert ratios[row] == pytest.approx(expected_ratio)


@given(patterns)
@settings(max_examples=60, deadline=None)
def test_covariances_are_those_of_the_estimates(pattern: list[list[bool]]) -> None:
    observed = np.array(pattern)
    model = TwoWay(observed)
    inverse = np.linalg.pinv(columns(observed).T @ columns(observed), rcond=1e-10)
    for at in np.flatnonzero(model.is_estimable):
        contrast = np.zeros(sum(observed.shape))
        contrast[0], contrast[at + 1] = -1, 1
        assert model.covariance[at, at] == pytest.approx(contrast @ inverse @ contrast, abs=1e-9)


def test_rows_that_share_no_seed_with_the_baseline_may_be_reached_through_others() -> None:
    observed = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]], dtype=bool)
    assert TwoWay(observed).is_estimable.tolist() == [True, True, False]
    apart = observed.copy()
    apart[1] = False
    assert TwoWay(apart).is_estimable.tolist() == [False, False, False]


def test_many_tables_at_once_are_each_alone() -> None:
    tables = np.stack([table(4, 3, seed) for seed in range(5)])
    model = TwoWay(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], dtype=bool))
    ratios, _ = model.departures(tables)
    for at, one in enumerate(tables):
        np.testing.assert_allclose(model.differences(tables)[at], model.differences(one))
        np.testing.assert_allclose(model.variance(tables)[at], model.variance(one))
        np.testing.assert_allclose(ratios[at], model.departures(one)[0])


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9, -1.0])
def test_what_is_no_more_than_rounding_is_0_at_any_size(size: float) -> None:
    """Equal rows do not differ and leave no error; different rows of that size do."""
    values = size * np.random.default_rng(3).gamma(2, size=(1, 5)).repeat(4, axis=0)
    model = TwoWay(np.ones((4, 5), dtype=bool))
    assert (model.differences(values) == 0).all()
    for additive in (values, values + size * np.arange(4.0)[:, None]):
        assert model.variance(additive) == 0
        assert np.isnan(model.departures(additive)[0]).all()
    values[1] *= 1 + np.linspace(0.001, 0.002, 5)
    assert model.differences(values)[0] != 0
    assert model.variance(values) > 0
