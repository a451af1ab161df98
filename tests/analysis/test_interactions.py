"""Interactions: the contrast of four rows, with an error that holds for all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.comparison import Interaction, Quadruple, compare, interaction
from ablate.analysis.statistics import Interval

ROWS: Quadruple = ("both", "first", "second", "neither")


def _values(seed: int, together: float = 0.0, sd: float = 0.1) -> dict[str, dict[int, float]]:
    draw = np.random.default_rng(seed)
    means = {"neither": 30.0, "first": 31.0, "second": 28.0, "both": 29.0 + together}
    return {
        row: {s: mean + s + draw.normal(0, sd) for s in (1, 2, 3)} for row, mean in means.items()
    }


def test_it_is_what_both_do_beyond_the_sum_of_each() -> None:
    values = _values(0, together=3.0, sd=0.0)
    actual = interaction(ROWS, values, compare(values))
    assert actual is not None
    assert actual.estimate == pytest.approx(3.0)
    assert actual.n == 3


def test_intervals_hold_0_in_19_of_20_additive_grids() -> None:
    n = 600
    n_different = 0
    for seed in range(n):
        values = _values(seed)
        actual = interaction(ROWS, values, compare(values))
        n_different += actual is not None and actual.differs_from_0
    assert abs(n_different / n - 0.05) < 3 * (0.05 * 0.95 / n) ** 0.5


def test_an_interval_that_ends_at_0_holds_it() -> None:
    assert not Interaction(1.0, 3, Interval(0.0, 2.0)).differs_from_0
    assert not Interaction(-1.0, 3, Interval(-2.0, 0.0)).differs_from_0
    assert Interaction(1.0, 3, Interval(0.1, 2.0)).differs_from_0


def test_more_cells_have_wider_intervals() -> None:
    values = _values(1)
    one, many = (interaction(ROWS, values, compare(values), n) for n in (1, 10))
    assert one
    assert one.interval
    assert many
    assert many.interval
    assert many.interval.high > one.interval.high


def test_a_row_that_diverged_has_no_interaction() -> None:
    values = _values(2)
    del values["both"][2]
    assert interaction(ROWS, values, compare(values, {"both": [2]})) is None


def test_one_shared_seed_of_a_row_that_departed_is_not_judged_by_the_other_rows() -> None:
    values = _values(4, together=50)
    values["both"] = {1: values["both"][1]}
    compared = compare(values)
    pooled = interaction(ROWS, values, compared)
    assert pooled is not None
    assert pooled.interval is not None
    own = interaction(ROWS, values, replace(compared, departed=("first",)))
    assert own == Interaction(pooled.estimate, 1, None)


@pytest.mark.parametrize("n_shared", [2, 5])
def test_a_row_that_departed_is_judged_by_its_own_quadruples(n_shared: int) -> None:
    """Student's interval of their mean, on one degree of freedom less than there are."""
    rng = np.random.default_rng(6)
    values = {row: {seed: rng.normal() for seed in range(1, 6)} for row in ROWS}
    values |= {f"other {n}": {seed: rng.normal() for seed in range(1, 6)} for n in range(4)}
    values["both"] = {seed: 900 * value for seed, value in values["both"].items()}
    shared = range(1, n_shared + 1)
    values["neither"] = {seed: values["neither"][seed] for seed in shared}
    compared = compare({row: values[row] for row in reversed(values)})
    assert compared.departed == ("both",)
    actual = interaction(ROWS, values, compared)
    contrasts = [
        values["both"][s] - values["first"][s] - values["second"][s] + values["neither"][s]
        for s in shared
    ]
    expected = stats.ttest_1samp(contrasts, 0).confidence_interval()
    assert actual is not None
    assert actual.interval is not None
    assert (actual.interval.low, actual.interval.high) == pytest.approx(tuple(expected))
