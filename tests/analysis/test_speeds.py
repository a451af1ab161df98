"""Speeds of rows that took turns: medians, quotients and intervals."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.speeds import compare_speeds, median_polish


def test_an_additive_table_is_taken_apart() -> None:
    rows, rounds = np.array([1.0, 4.0, 2.0]), np.array([0.0, 0.5, -2.0, 7.0, 1.0])
    polished = median_polish(rows[:, None] + rounds)
    np.testing.assert_allclose(polished, rows + np.median(rounds))


def test_one_disturbed_measurement_moves_nothing() -> None:
    rng = np.random.default_rng(0)
    values = np.array([1.0, 4.0, 2.0])[:, None] + rng.normal(0, 1, 5)
    disturbed = values.copy()
    disturbed[1, 2] -= 3
    np.testing.assert_allclose(median_polish(disturbed), median_polish(values), atol=1e-9)


def test_ratios_are_the_quotients_of_the_speeds() -> None:
    rng = np.random.default_rng(2)
    rounds = {name: list(rng.lognormal(6, 0.3, 7)) for name in ("baseline", "a", "b")}
    speeds = compare_speeds(rounds)
    assert (speeds["baseline"].ratio, speeds["baseline"].interval) == (None, None)
    for name in ("a", "b"):
        quotient = speeds[name].value / speeds["baseline"].value
        assert speeds[name].ratio == pytest.approx(quotient)
        logs = np.log(rounds[name]) - np.log(rounds["baseline"])
        ends = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
        interval = speeds[name].interval
        assert interval is not None
        assert interval.low == pytest.approx(math.exp(ends.low))
        assert interval.high == pytest.approx(math.exp(ends.high))


def test_a_machine_that_slows_down_for_all_leaves_the_ratio_alone() -> None:
    speeds = compare_speeds({"baseline": [400.0, 800.0, 100.0], "twice": [800.0, 1600.0, 200.0]})
    assert speeds["twice"].ratio == pytest.approx(2)
    assert speeds["twice"].interval is not None
    assert speeds["twice"].interval.low == pytest.approx(speeds["twice"].interval.high)
    assert speeds["baseline"].value == pytest.approx(400)


def test_a_row_alone_has_the_median_of_its_rounds() -> None:
    values = [500.0, 900.0, 700.0]
    speed = compare_speeds({"baseline": values})["baseline"]
    assert speed.value == pytest.approx(statistics.median(values))
    assert speed.n == 3


def test_a_row_that_failed_later_has_the_rounds_that_it_has() -> None:
    speeds = compare_speeds({"baseline": [400.0, 800.0, 100.0, 200.0], "a": [800.0, 1600.0]})
    assert speeds["a"].n == 2
    assert speeds["a"].ratio == pytest.approx(2)


def test_one_round_has_no_interval() -> None:
    speeds = compare_speeds({"baseline": [400.0], "a": [500.0]})
    assert speeds["a"].ratio == pytest.approx(1.25)
    assert speeds["a"].interval is None


def test_two_rounds_have_an_interval_of_their_logarithms() -> None:
    speeds = compare_speeds({"baseline": [10.0, 20.0], "row": [30.0, 50.0]})
    ratios = np.log([3.0, 2.5])
    expected = stats.t.interval(0.95, 1, ratios.mean(), ratios.std(ddof=1) / math.sqrt(2))
    interval = speeds["row"].interval
    assert interval is not None
    assert [interval.low, interval.high] == pytest.approx(np.exp(expected))
