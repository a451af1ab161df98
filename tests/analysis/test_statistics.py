"""The statistics against textbook values, simulation and their own definitions."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.analysis.statistics import (
    Estimate,
    paired,
    pooled_sd,
    smallest_detectable,
    student_quantile,
)

FINITE = st.floats(-100, 100)


def of(*values: float) -> Estimate:
    return Estimate(dict(enumerate(values, start=1)))


@given(st.lists(FINITE, min_size=2, max_size=8))
def test_mean_and_sd_are_those_of_the_standard_library(values: list[float]) -> None:
    assert of(*values).mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert of(*values).sd == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    one = of(41.0)
    assert one.mean == 41.0
    assert (one.sd, one.student, one.bootstrap) == (None, None, None)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_value_without_bound_spoils_the_mean_and_raises_nothing(bad: float) -> None:
    spoiled = of(1.0, bad)
    assert not math.isfinite(spoiled.mean)
    assert (spoiled.sd, spoiled.student, spoiled.bootstrap) == (None, None, None)


def test_the_order_of_the_seeds_changes_nothing() -> None:
    forth, back = Estimate({1: 0.1, 2: 0.7, 3: 0.4}), Estimate({3: 0.4, 2: 0.7, 1: 0.1})
    assert forth.mean == back.mean
    assert forth.bootstrap == back.bootstrap


def test_differences_are_taken_over_common_seeds_alone() -> None:
    difference = paired(Estimate({1: 5.0, 2: 7.0, 4: 100.0}), Estimate({1: 4.0, 2: 4.0, 3: -100.0}))
    assert difference is not None
    assert difference.values == {1: 1.0, 2: 3.0}
    assert difference.seeds == (1, 2)


def test_without_a_common_seed_there_is_no_difference() -> None:
    assert paired(Estimate({1: 5.0}), Estimate({2: 5.0})) is None


def test_pairing_removes_what_the_seeds_share() -> None:
    luck = (-2.0, 0.0, 2.0)
    ours, theirs = of(*(41 + x for x in luck)), of(*(40 + x for x in luck))
    difference = paired(ours, theirs)
    assert difference is not None
    assert difference.sd == 0.0
    assert ours.sd == 2.0


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.706205), (2, 4.302653), (4, 2.776445), (9, 2.262157), (29, 2.045230)]
)
def test_student_quantiles_are_those_of_the_tables(df: int, t: float) -> None:
    assert student_quantile(df) == pytest.approx(t, abs=1e-6)


def test_student_interval_follows_its_formula() -> None:
    interval = of(1.0, 2.0, 3.0).student
    assert interval is not None
    half = 4.302653 / math.sqrt(3)
    assert (interval.low, interval.high) == pytest.approx((2 - half, 2 + half), abs=1e-6)


def test_bootstrap_is_repeatable_and_stays_between_the_extremes() -> None:
    estimate = of(0.3, 0.9, 0.5, 0.6)
    interval = estimate.bootstrap
    assert interval == estimate.bootstrap
    assert interval is not None
    assert 0.3 <= interval.low < estimate.mean < interval.high <= 0.9


def test_bootstrap_of_many_seeds_approaches_students_interval() -> None:
    values = np.random.default_rng(0).normal(size=400)
    bootstrap, student = of(*values).bootstrap, of(*values).student
    assert bootstrap is not None
    assert student is not None
    assert (bootstrap.low, bootstrap.high) == pytest.approx((student.low, student.high), abs=0.01)


def test_pooled_sd_weighs_by_degrees_of_freedom() -> None:
    # within-group squares 2 and 8 over 2 + 1 degrees of freedom; one seed has none
    assert pooled_sd([of(1, 2, 3), of(0, 4), of(7)]) == pytest.approx(math.sqrt((2 + 8) / 3))
    assert pooled_sd([of(7)]) is None


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_a_smallest_detectable_difference_is_found_in_four_cases_of_five(n: int) -> None:
    sd, repeats = 0.4, 100_000
    true = smallest_detectable(sd, n)
    drawn = np.random.default_rng(n).normal(true, sd, (repeats, n))
    t = drawn.mean(axis=1) / drawn.std(axis=1, ddof=1) * math.sqrt(n)
    assert (np.abs(t) > student_quantile(n - 1)).mean() == pytest.approx(0.8, abs=0.005)


def test_more_seeds_detect_smaller_differences() -> None:
    least = [smallest_detectable(1.0, n) for n in range(2, 12)]
    assert least == sorted(least, reverse=True)
    assert smallest_detectable(2.0, 5) == pytest.approx(2 * smallest_detectable(1.0, 5))
