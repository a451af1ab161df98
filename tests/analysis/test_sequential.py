"""Boundaries of looks: published constants, an exact recursion, and simulated tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from ablate.analysis import sequential
from ablate.analysis.dunnett import Family, critical_value
from ablate.analysis.sequential import chance, median_unbiased
from ablate.analysis.statistics import LEVEL

B = math.sqrt(0.5)


def constants(looks: tuple[int, ...], n_rows: int) -> list[float]:
    """Return by how many known standard errors a row differs at a look to be decided."""
    levels = sequential.levels(looks, n_rows)
    return [critical_value([B] * n_rows, math.inf, level) for level in levels]


@pytest.mark.parametrize("n_rows", [1, 4, 110])
def test_one_look_is_a_table(n_rows: int) -> None:
    assert sequential.levels((5,), n_rows) == pytest.approx((LEVEL,), abs=1e-4)


@pytest.mark.parametrize(
    ("factors", "n_rows"),
    [
        # Pocock 1977, Biometrika 64, table 1, two-sided 5%: one constant at all looks
        *[((c,) * n, 1) for n, c in ((2, 2.178), (3, 2.289), (4, 2.361), (5, 2.413))],
        # O'Brien & Fleming 1979, Biometrics 35; Jennison & Turnbull 2000, table 2.3
        *[
            (tuple(c * math.sqrt(n / k) for k in range(1, n + 1)), 1)
            for n, c in ((2, 1.977), (3, 2.004), (4, 2.024), (5, 2.040))
        ],
        # R's lrstat 0.3.3, manual of exitprob_mams: of two rows, 2.5% to each side
        ((3.886562, 2.748214, 2.243907), 2),
    ],
)
def test_published_boundaries_are_crossed_in_5_of_100(
    factors: tuple[float, ...], n_rows: int
) -> None:
    row = sequential._Row(n_rows)
    stays = 1.0
    for look, (factor, step) in enumerate(
        zip(factors, sequential._walks(len(factors)).T, strict=True)
    ):
        bound = factor * math.sqrt(2 * (look + 1))
        row.go_on(step, 1.0)
        stays = row.none_crosses(bound)
        row.stop_at(bound)
    assert stays == pytest.approx(0.95, abs=6e-4)


def exact(looks: tuple[int, ...]) -> list[float]:
    """Return the constants of one row: its difference alone is a random walk."""
    nodes, weights = np.polynomial.legendre.leggauss(120)
    at, density, result, before = np.zeros(1), np.ones(1), [], 0
    for n in looks:
        spread, before = math.sqrt(2 * (n - before)), n
        low, high = 0.0, 50.0
        for _ in range(60):
            bound = (low + high) / 2
            inside = special.ndtr((bound - at) / spread) - special.ndtr((-bound - at) / spread)
            is_low = density @ inside < 1 - 0.05 * n / looks[-1]
            low, high = (bound, high) if is_low else (low, bound)
        result.append(bound / math.sqrt(2 * n))
        following = bound * nodes
        away = (following - at[:, None]) / spread
        density = density @ np.exp(-(away**2) / 2) / (spread * math.sqrt(2 * math.pi))
        density, at = density * bound * weights, following
    return result


@pytest.mark.parametrize("looks", [(1, 2), (3, 5, 8, 12), (2, 3, 4, 5, 20)])
def test_the_constants_of_one_row_are_exact(looks: tuple[int, ...]) -> None:
    assert constants(looks, 1) == pytest.approx(exact(looks), abs=5e-3)


@pytest.mark.parametrize(("looks", "n_rows"), [((3, 5, 8, 12), 4), ((3, 6), 15)])
def test_no_more_tables_are_wrong_at_any_look_than_have_been_spent(
    looks: tuple[int, ...], n_rows: int
) -> None:
    rng, n = np.random.default_rng(1), 60_000
    rows, baseline = np.zeros((n, n_rows)), np.zeros((n, 1))
    is_wrong = np.zeros(n, dtype=bool)
    for seeds, more, c in zip(looks, np.diff([0, *looks]), constants(looks, n_rows), strict=True):
        rows += rng.standard_normal((n, n_rows)) * math.sqrt(more)
        baseline += rng.standard_normal((n, 1)) * math.sqrt(more)
        is_wrong |= (np.abs(rows - baseline) / math.sqrt(2 * seeds) > c).any(axis=1)
        spent = 0.05 * seeds / looks[-1]
        assert is_wrong.mean() == pytest.approx(spent, abs=4 * math.sqrt(spent / n))


def test_an_interval_at_a_look_leaves_out_0_where_p_is_below_5_of_100() -> None:
    family = Family((B, B, B), 8, level=sequential.levels((3, 5), 3)[0])
    critical = family.critical
    assert critical is not None
    assert critical > (Family((B, B, B), 8).critical or math.inf)
    assert family.p_of(critical, 8) == pytest.approx(0.05, abs=1e-7)
    assert family.p_of(0.0, 8) == 1.0
    alone = Family((), 0, n_separate=2, level=0.99)
    assert alone.p_of(alone.critical_of(4), 4) == pytest.approx(0.05, abs=1e-7)


def test_the_estimate_of_one_look_is_the_estimate() -> None:
    for estimate in (2.0, -3.5):
        actual = median_unbiased(estimate, 0.4, [5], [2.5], 0.3)
        assert actual == pytest.approx(estimate, abs=1e-4)


def test_a_band_within_which_no_interval_lies_at_the_first_look_changes_no_estimate() -> None:
    of_looks = 1.6, 0.6, [3, 5], [4.0, 2.5]
    assert median_unbiased(*of_looks, 0.5) == median_unbiased(*of_looks, 0.0)


@pytest.mark.parametrize("scale", [1e-3, 100.0])
def test_an_early_estimate_has_the_unit_of_its_error(scale: float) -> None:
    looks, constants = [3, 5], [2.5, 2.5]
    expected = scale * median_unbiased(2.2, 0.6, looks, constants, 0.3)
    actual = median_unbiased(2.2 * scale, 0.6 * scale, looks, constants, 0.3 * scale)
    assert actual == pytest.approx(expected, rel=1e-6)


def test_an_early_estimate_moves_towards_0_alike_on_both_sides() -> None:
    high = median_unbiased(2.2, 0.6, [3, 5], [2.5, 2.5], 0.0)
    assert 1.5 < high < 2.2
    assert median_unbiased(-2.2, 0.6, [3, 5], [2.5, 2.5], 0.0) == pytest.approx(-high)


@pytest.mark.parametrize(("true", "band"), [(1.2, 0.0), (1.5, 0.6), (2.5, 0.4)])
def test_a_median_unbiased_estimate_is_too_high_as_often_as_too_low(
    true: float, band: float
) -> None:
    draw, looks, n = np.random.default_rng(3), (3, 5, 8, 12), 1000
    bounds = constants(looks, 1)
    n_above = n_naive = 0
    for _ in range(n):
        pairs = draw.normal(true, math.sqrt(2), looks[-1])
        for at, (seeds, constant) in enumerate(zip(looks, bounds, strict=True), start=1):
            estimate, error = float(pairs[:seeds].mean()), math.sqrt(2 / seeds)
            if estimate > constant * error:
                args = estimate, error, looks[:at], bounds[:at], band
                n_above += median_unbiased(*args) > true
                n_naive += estimate > true
                break
            if abs(estimate) + constant * error < band or estimate < -constant * error:
                break
    assert abs(n_above / n - 0.5) < 3 * 0.5 / math.sqrt(n)
    assert n_naive > n_above


@pytest.mark.parametrize(
    ("looks", "bounds", "band", "estimate"),
    [((5, 8), (2.5, 2.2), 2.2, 1.4), ((3, 12), (3.0, 2.2), 0.0, 1.0)],
)
def test_an_outcome_as_high_as_an_unbiased_estimate_is_as_likely_as_a_lower_one(
    looks: tuple[int, int], bounds: tuple[float, float], band: float, estimate: float
) -> None:
    """Also with a band that stops a row near 0 at the first look."""
    pair, (few, many) = 1.5, looks
    true = median_unbiased(estimate, pair / math.sqrt(many), looks, bounds, band)
    draw, n = np.random.default_rng(7), 400_000
    first = draw.normal(true, pair / math.sqrt(few), n)
    rest = draw.normal(true, pair / math.sqrt(many - few), n)
    second = (few * first + (many - few) * rest) / many
    half = bounds[0] * pair / math.sqrt(few)
    goes_on = (np.abs(first) < half) & (np.abs(first) + half > band)
    is_as_high = (first > half) | (goes_on & (second > estimate))
    assert 0.1 < goes_on.mean() < 0.99
    assert is_as_high.mean() == pytest.approx(0.5, abs=0.004)


@pytest.mark.parametrize(
    ("estimate", "band", "later"),
    [(0.0, 0.0, 12), (0.4, 0.0, 12), (1.2, 0.0, 8), (0.1, 1.4, 12), (-1.3, 1.4, 12)],
)
def test_the_chance_of_a_decision_is_how_often_it_comes(
    estimate: float, band: float, later: int
) -> None:
    """Draw the true difference as this look leaves it, and then the seeds that follow."""
    draw, looks, n, error = np.random.default_rng(5), (3, 5, 8, 12), 5, 0.5
    pair = error * math.sqrt(n)
    true = draw.normal(estimate, error, 200_000)
    rest = draw.normal(true, pair / math.sqrt(later - n))
    final = (n * estimate + (later - n) * rest) / later
    half = constants(looks, 4)[looks.index(later)] * pair / math.sqrt(later)
    decided = (np.abs(final) > half) | (np.abs(final) < band - half)
    actual = chance(estimate, error, looks, n, 4, band, later)
    assert actual == pytest.approx(decided.mean(), abs=0.004)


def test_a_row_with_a_large_or_no_difference_is_not_given_up() -> None:
    assert chance(9.0, 0.5, (3, 12), 3, 4, 0.0) > 0.999
    assert chance(0.0, 0.5, (3, 12), 3, 4, 9.0) > 0.999
