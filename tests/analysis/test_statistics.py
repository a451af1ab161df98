"""Means, spreads and paired differences against their definitions."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ablate.analysis.statistics import (
    Estimate,
    Interval,
    Perplexity,
    paired_differences,
    t_quantile,
)

FINITE = st.floats(-100, 100)


def of(*values: float) -> Estimate:
    return Estimate(dict(enumerate(values, start=1)))


@given(st.lists(FINITE, min_size=2, max_size=8))
def test_mean_and_sd_are_those_of_the_standard_library(values: list[float]) -> None:
    assert of(*values).mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert of(*values).sd == pytest.approx(statistics.stdev(values), abs=1e-9)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_value_or_one_without_bound_has_no_deviation(bad: float) -> None:
    assert (of(41.0).mean, of(41.0).sd) == (41.0, None)
    spoiled = of(1.0, bad)
    assert not math.isfinite(spoiled.mean)
    assert spoiled.sd is None


def test_opposite_infinities_have_no_mean() -> None:
    assert math.isnan(of(math.inf, -math.inf).mean)
    assert math.isnan(of(-math.inf, 1.0, math.inf).mean)


def test_a_perplexity_is_of_each_seed_and_its_mean_of_the_mean_nll() -> None:
    ppl = Perplexity.of(Estimate({3: 1.0, 7: 2.0}))
    assert ppl.values == pytest.approx({3: math.e, 7: math.e**2})
    assert ppl.mean == pytest.approx(math.exp(1.5))


def test_differences_are_of_common_seeds_in_their_order() -> None:
    ours, theirs = {40: 3.0, 17: 5.0, 3: 1.0, 8: 9.0}, {3: 2.0, 17: 1.0, 40: 7.0, 9: 0.0}
    assert list(paired_differences(ours, theirs).items()) == [(3, -1.0), (17, 4.0), (40, -4.0)]


def test_values_whose_squares_are_no_floats_have_a_deviation() -> None:
    assert of(1e174, 2e174, 3e174).sd == pytest.approx(1e174)
    assert of(1e154, 3e154).sd == pytest.approx(2**0.5 * 1e154)


def test_the_order_of_the_seeds_changes_nothing() -> None:
    forth, back = Estimate({1: 0.1, 2: 0.7, 3: 0.4}), Estimate({3: 0.4, 2: 0.7, 1: 0.1})
    assert (forth.mean, forth.sd) == (back.mean, back.sd)


@pytest.mark.parametrize(
    ("df", "above", "expected"),
    [  # any printed table of Student's distribution
        (1, 0.05, 6.314),
        (1, 0.001, 318.309),
        (2, 0.025, 4.303),
        (4, 0.1, 1.533),
        (4, 0.005, 4.604),
        (10, 0.001, 4.144),
        (30, 0.025, 2.042),
        (120, 0.005, 2.617),
    ],
)
def test_quantiles_are_those_of_the_printed_tables(df: int, above: float, expected: float) -> None:
    assert t_quantile(above, df) == pytest.approx(expected, abs=6e-4)
    assert t_quantile(1 - above, df) == pytest.approx(-expected, abs=6e-4)


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_interval_of_a_mean_is_that_of_a_t_test(level: float) -> None:
    values = of(1.0, 2.5, 2.0, 7.0)
    assert values.sd is not None
    actual = Interval.of_mean(values.mean, values.sd, values.n, (1 - level) / 2)
    ends = stats.ttest_1samp(list(values.values.values()), 0).confidence_interval(level)
    assert (actual.low, actual.high) == pytest.approx((ends.low, ends.high))
