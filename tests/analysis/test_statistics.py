"""Means, spreads and paired differences against their definitions."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.analysis.statistics import Estimate, paired_differences

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
    assert one.sd is None


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_value_without_bound_spoils_the_mean_and_raises_nothing(bad: float) -> None:
    spoiled = of(1.0, bad)
    assert not math.isfinite(spoiled.mean)
    assert spoiled.sd is None


def test_values_whose_squares_are_no_floats_have_a_deviation() -> None:
    assert of(1e174, 2e174, 3e174).sd == pytest.approx(1e174)
    assert of(1e154, 3e154).sd == pytest.approx(2**0.5 * 1e154)


def test_the_order_of_the_seeds_changes_nothing() -> None:
    forth, back = Estimate({1: 0.1, 2: 0.7, 3: 0.4}), Estimate({3: 0.4, 2: 0.7, 1: 0.1})
    assert (forth.mean, forth.sd, forth.seeds) == (back.mean, back.sd, back.seeds)


def test_differences_are_taken_over_common_seeds_alone() -> None:
    pairs = paired_differences({2: 7.0, 1: 5.0, 4: 100.0}, {1: 4.0, 2: 4.0, 3: -100.0})
    assert list(pairs.items()) == [(1, 1.0), (2, 3.0)]


def test_without_a_common_seed_there_is_no_difference() -> None:
    assert paired_differences({1: 5.0}, {2: 5.0}) == {}


def test_pairing_removes_what_the_seeds_share() -> None:
    luck = (-2.0, 0.0, 2.0)
    ours, theirs = of(*(41 + x for x in luck)), of(*(40 + x for x in luck))
    assert Estimate(paired_differences(ours.values, theirs.values)).sd == 0.0
    assert ours.sd == 2.0
