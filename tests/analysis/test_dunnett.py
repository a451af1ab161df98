"""Dunnett's constants against published tables, scipy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.dunnett import (
    Family,
    coverage,
    critical_value,
    loadings_of,
    sidak_value,
    single_value,
    smallest_detectable,
)
from ablate.analysis.two_way import TwoWay

BALANCED = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("df", "printed"),
    [  # Dunnett 1964, Biometrics 20, table II: two-sided 5%, for 1 to 9 comparisons
        (5, "2.57 3.03 3.29 3.48 3.62 3.73 3.82 3.90 3.97"),
        (8, "2.31 2.67 2.88 3.02 3.13 3.22 3.29 3.35 3.41"),
        (10, "2.23 2.57 2.76 2.89 2.99 3.07 3.14 3.19 3.24"),
        (20, "2.09 2.38 2.54 2.65 2.73 2.80 2.86 2.90 2.95"),
        (60, "2.00 2.27 2.41 2.51 2.58 2.64 2.69 2.73 2.77"),
        (math.inf, "1.96 2.21 2.35 2.44 2.51 2.57 2.61 2.65 2.69"),
    ],
)
def test_constants_are_those_of_the_published_table(df: float, printed: str) -> None:
    ours = [critical_value([BALANCED] * k, df) for k in range(1, 10)]
    np.testing.assert_allclose(ours, [float(text) for text in printed.split()], atol=0.0051)


def test_intervals_and_p_values_are_those_of_scipy() -> None:
    rng = np.random.default_rng(3)
    control, *rows = [rng.normal(size=n) + shift for n, shift in ((4, 0), (3, 1), (5, 2), (6, 0))]
    theirs = stats.dunnett(*rows, control=control)
    df = 4 + sum(map(len, rows)) - 4
    loadings = [math.sqrt(len(row) / (len(row) + 4)) for row in rows]
    family = Family(tuple(loadings), df)
    ours = [family.p_of(abs(statistic), family.df) for statistic in theirs.statistic]
    np.testing.assert_allclose(ours, theirs.pvalue, atol=1e-3)
    ends = theirs.confidence_interval(0.95)
    estimates = [row.mean() - control.mean() for row in rows]
    half = np.array(ends.high) - estimates
    errors = np.array(estimates) / theirs.statistic
    np.testing.assert_allclose(half / errors, critical_value(loadings, df), rtol=2e-3)


@pytest.mark.parametrize("df", [1, 2, 7.5, 400, math.inf])
def test_one_comparison_is_students_t(df: float) -> None:
    assert coverage(single_value(df), [0.6], df) == pytest.approx(0.95, abs=1e-9)
    assert critical_value([0.6], df) == pytest.approx(single_value(df))


def test_comparisons_that_share_nothing_are_sidaks_at_a_known_error() -> None:
    assert critical_value([0.0] * 6, math.inf) == pytest.approx(sidak_value(6, math.inf))
    assert critical_value([0.0] * 6, 8) < sidak_value(6, 8)  # they share the error


def test_a_product_form_gives_its_loadings_back() -> None:
    loadings = np.array([0.3, 0.9, 0.5, 0.7])
    correlation = np.outer(loadings, loadings)
    np.fill_diagonal(correlation, 1)
    scale = np.array([1.0, 2.0, 0.5, 3.0])
    covariance = correlation * np.outer(scale, scale)
    np.testing.assert_allclose(loadings_of(covariance), loadings)
    assert loadings_of(covariance[:1, :1]).tolist() == [0]
    two = loadings_of(covariance[:2, :2])
    assert two[0] * two[1] == pytest.approx(0.27)
    for n in (2, 3):
        assert loadings_of(np.eye(n)).tolist() == [0] * n


def test_whole_tables_have_correlations_of_a_half() -> None:
    covariance = TwoWay(np.ones((6, 4), dtype=bool)).covariance
    np.testing.assert_allclose(loadings_of(covariance), BALANCED)


@pytest.mark.parametrize(
    "missing",
    [
        [(1, 0), (2, 1), (3, 2)],
        [(0, 0)],
        [(0, 0), (1, 1), (1, 2), (4, 0)],
        [(1, 0), (1, 1), (2, 2), (3, 0), (4, 1), (4, 2)],
    ],
)
def test_constants_of_tables_with_missing_cells_are_conservative(
    missing: list[tuple[int, int]],
) -> None:
    observed = np.ones((5, 3), dtype=bool)
    observed[tuple(zip(*missing, strict=True))] = False
    model = TwoWay(observed)
    loadings = loadings_of(model.covariance)
    products = np.outer(loadings, loadings)
    scale = np.sqrt(np.diag(model.covariance))
    apart = ~np.eye(4, dtype=bool)
    assert (products <= model.covariance / np.outer(scale, scale) + 1e-9)[apart].all()
    rng = np.random.default_rng(0)
    n = 200_000
    draws = rng.multivariate_normal(np.zeros(4), model.covariance, n) / scale
    errors = np.sqrt(rng.chisquare(model.df, n) / model.df)
    largest = np.abs(draws).max(axis=1) / errors
    held = (largest < critical_value(loadings.tolist(), model.df)).mean()
    assert 0.9485 < held < 0.96  # the Monte Carlo error is 0.0005


def test_an_adjusted_p_is_5_percent_just_at_the_constant() -> None:
    family = Family((BALANCED,) * 4, 8, n_separate=1)
    assert family.critical is not None
    assert family.p_of(family.critical, family.df) == pytest.approx(0.05, abs=1e-6)
    assert family.p_of(family.critical_of(2), 2) == pytest.approx(0.05, abs=1e-6)
    assert family.p_of(0.0, family.df) == 1
    assert family.p_of(math.inf, family.df) == pytest.approx(0, abs=1e-9)
    assert family.p_of(math.inf, 2) == pytest.approx(0, abs=1e-9)


def test_a_comparison_apart_has_a_family_without_a_shared_error_too() -> None:
    family = Family((), 0, n_separate=3)
    assert family.critical is None
    assert family.critical_of(4) == pytest.approx(sidak_value(3, 4))
    assert family.p_of(family.critical_of(4), 4) == pytest.approx(0.05)


def test_a_comparison_apart_makes_the_constant_larger() -> None:
    alone, with_one = Family((BALANCED,) * 4, 8), Family((BALANCED,) * 4, 8, n_separate=1)
    assert alone.critical is not None
    assert with_one.critical is not None
    assert alone.critical < with_one.critical < critical_value([0.0] * 5, 8)
    assert with_one.critical == critical_value([BALANCED] * 4 + [0.0], 8)


def test_the_smallest_detectable_difference_is_that_of_the_noncentral_t() -> None:
    """As in statsmodels 0.15: TTestPower().solve_power(nobs=10, power=0.8, alpha=0.05)."""
    assert smallest_detectable(1 / math.sqrt(10), single_value(9), 9) == pytest.approx(
        0.99600, abs=1e-5
    )
    critical = critical_value([BALANCED] * 4, 8)
    shift = smallest_detectable(1.0, critical, 8)
    rng = np.random.default_rng(1)
    t = (rng.normal(size=400_000) + shift) / np.sqrt(rng.chisquare(8, 400_000) / 8)
    assert (np.abs(t) > critical).mean() == pytest.approx(0.8, abs=0.003)


@pytest.mark.parametrize(("critical", "df"), [(0.3, 5), (0.5, 10), (2.2, 10), (4, 2)])
def test_a_detectable_difference_may_be_found_on_either_side(critical: float, df: int) -> None:
    """As a difference near 0 may be beyond a small constant."""
    t = stats.nct(df, smallest_detectable(1.0, critical, df))
    assert t.sf(critical) + t.cdf(-critical) == pytest.approx(0.8)


def test_where_errors_vary_most_the_detectable_difference_is_far_beyond_the_constant() -> None:
    assert smallest_detectable(1.0, 60.0, 1) > 70


@pytest.mark.parametrize("loadings", [(0.1, 0.9999), (0.9999, 0.1), (0.9, 0.99), (0.5, 0.5)])
def test_the_coverage_is_that_of_the_multivariate_t(loadings: tuple[float, float]) -> None:
    correlation = loadings[0] * loadings[1]
    t = stats.multivariate_t(shape=[[1, correlation], [correlation, 1]], df=7, seed=1)
    expected = t.cdf([2.4, 2.4], lower_limit=[-2.4, -2.4], maxpts=2_000_000)
    assert coverage(2.4, loadings, 7.0) == pytest.approx(expected, abs=2e-5)
