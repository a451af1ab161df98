"""A row's differences in several contexts, compared with closed forms, SciPy's and simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.comparison import Difference
from ablate.analysis.contexts import OverContexts, over_contexts
from ablate.analysis.dunnett import Family
from ablate.analysis.statistics import Interval


def measured(estimate: float, error: float | None = 0.5, df: float | None = 8) -> Difference:
    return Difference(estimate, 5, 0, "two-way", error, df)


def over(
    differences: Sequence[Difference | None], *rest: object, has_looks: bool = False
) -> OverContexts:
    result = over_contexts(differences, *rest, has_looks=has_looks)  # type: ignore[arg-type]
    assert result is not None
    return result


@pytest.mark.parametrize(("values", "n_rows"), [([1.2, -0.4, 2.5, 0.7], 1), ([1.2, -0.4, 2.5], 7)])
def test_the_mean_of_three_or_more_has_students_interval_that_holds_for_all_rows(
    values: list[float], n_rows: int
) -> None:
    result = over([measured(value) for value in values], n_rows)
    known = stats.ttest_1samp(values, 0).confidence_interval(0.95 ** (1 / n_rows))
    assert result.mean == pytest.approx(np.mean(values))
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == pytest.approx((known.low, known.high))


def test_one_more_context_lies_where_students_prediction_says() -> None:
    values = [1.0, 2.0, 4.0]
    result = over([measured(value) for value in values], 1)
    half = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) * math.sqrt(4 / 3)
    assert result.prediction is not None
    assert result.prediction.high - result.mean == pytest.approx(half)
    assert result.mean - result.prediction.low == pytest.approx(half)


def test_the_spread_over_contexts_is_what_errors_do_not_explain() -> None:
    values, errors = [0.0, 3.0, 6.0], [0.5, 1.0, 1.5]
    result = over([measured(v, e) for v, e in zip(values, errors, strict=True)], 1)
    assert result.tau == pytest.approx(math.sqrt(9 - (0.25 + 1 + 2.25) / 3))
    assert over([measured(value, 9.0) for value in values], 1).tau == 0


@pytest.mark.parametrize("n_rows", [1, 7])
def test_of_two_contexts_nothing_is_said_of_others(n_rows: int) -> None:
    result = over([measured(1.0, 0.3, 8), measured(2.0, 0.4, 4)], n_rows)
    assert result.prediction is None
    assert result.tau is None
    variance = (0.3**2 + 0.4**2) / 4
    df = variance**2 / ((0.3**2 / 4) ** 2 / 8 + (0.4**2 / 4) ** 2 / 4)  # Welch and Satterthwaite
    half = stats.t.ppf((1 + 0.95 ** (1 / n_rows)) / 2, df) * math.sqrt(variance)
    assert result.here == result.interval is not None
    assert (result.interval.low, result.interval.high) == pytest.approx((1.5 - half, 1.5 + half))


def test_new_seeds_in_these_contexts_are_less_to_ask_for_than_other_contexts() -> None:
    result = over([measured(value, 0.3, 1e9) for value in (1.0, 5.0, 9.0)], 1)
    assert result.here is not None
    assert result.here.high - 5 == pytest.approx(stats.norm.ppf(0.975) * 0.3 / math.sqrt(3))
    assert result.interval is not None
    assert result.interval.high > 10 * (result.here.high - 5)


@pytest.mark.parametrize("n_rows", [1, 7])
def test_the_trend_is_the_least_squares_line_over_doublings(n_rows: int) -> None:
    values, sizes = [1.0, 2.5, 2.0], [32, 64, 256]
    result = over([measured(value, 0.3, 1e9) for value in values], n_rows, sizes)
    slope, _ = np.polyfit(np.log2(sizes), values, 1)
    assert result.trend is not None
    assert result.trend.interval is not None
    assert result.trend.estimate == pytest.approx(slope)
    x = np.log2(sizes)
    error = 0.3 / math.sqrt(((x - x.mean()) ** 2).sum())
    constant = stats.norm.ppf((1 + 0.95 ** (1 / n_rows)) / 2)
    assert result.trend.interval.high - slope == pytest.approx(constant * error)


def test_at_looks_intervals_of_new_seeds_are_sums_of_those_of_the_contexts() -> None:
    """Each with the constant of its own table."""
    families = [Family((math.sqrt(0.5),) * 2, df, level=0.99) for df in (8, 4, 6)]
    of_cells = zip((1.0, 2.0, 6.0), (0.3, 0.4, 0.5), families, strict=True)
    cells = [replace(measured(v, e, f.df), family=f) for v, e, f in of_cells]
    result = over(cells, 2, [1, 2, 4], has_looks=True)
    assert result.here is not None
    first, second, third = (f.critical_of(f.df) for f in families)
    half = (first * 0.3 + second * 0.4 + third * 0.5) / 3
    assert result.here.high - 3 == pytest.approx(half)
    assert result.trend is not None
    assert result.trend.interval is not None
    half = (first * 0.3 + third * 0.5) / 2
    assert result.trend.interval.high - result.trend.estimate == pytest.approx(half)


def test_a_row_that_diverged_in_a_context_is_not_taken_together() -> None:
    for method in ("none", "divergence as 0"):
        cells = [measured(1.0), replace(measured(2.0), method=method), measured(3.0)]
        assert over_contexts(cells, 1) is None


def test_a_row_that_is_the_baseline_in_a_context_differs_by_0_there_without_error() -> None:
    """As one that shares layers does where there is one layer."""
    same = Difference(0.0, 5, 0, "same")
    result = over([same, measured(2.0, 0.4, 6)], 1, [1, 2])
    half = stats.t.ppf(0.975, 6) * 0.4
    assert result.here is not None
    assert (result.here.low, result.here.high) == pytest.approx((1 - half / 2, 1 + half / 2))
    assert result.trend is not None
    assert result.trend.interval is not None
    assert result.trend.interval.high - result.trend.estimate == pytest.approx(half)
    assert over([same, same], 1).interval == Interval(0.0, 0.0)
    cells = [same, measured(3.0, 0.5), measured(6.0, 1.0)]
    assert over(cells, 1).tau == pytest.approx(math.sqrt(9 - (0.25 + 1) / 3))
    family = Family((0.0,), 6, level=0.99)
    at_looks = over([same, replace(measured(2.0, 0.4, 6), family=family)], 1, has_looks=True)
    assert at_looks.here is not None
    assert at_looks.here.high - 1 == pytest.approx(family.critical_of(6) * 0.4 / 2)


def test_what_is_not_known_of_one_context_is_not_known_of_all() -> None:
    assert over_contexts([measured(1.0), None, measured(2.0)], 1) is None
    assert over_contexts([measured(1.0), measured(math.inf)], 1) is None
    assert over_contexts([measured(1.0)], 1) is None
    unknown = over([measured(1.0), measured(2.0, None, None)], 1, [1, 2])
    assert unknown.interval is None
    assert unknown.trend is not None
    assert unknown.trend.interval is None
    assert over([measured(1.0, 0.0), measured(1.0, 0.0)], 1).interval is not None


@pytest.mark.parametrize("errors", [[0.5] * 4, [0.2, 2.0, 0.5, 1.0]])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_intervals_hold_as_often_as_they_say(tau: float, errors: list[float]) -> None:
    draw, n, df = np.random.default_rng(7), 2000, 8
    x = np.arange(4) - 1.5
    held = np.zeros(3)
    for _ in range(n):
        true = draw.normal(0, tau, 5)
        known = draw.normal(true[:4], errors)
        own = np.array(errors) * np.sqrt(draw.chisquare(df, 4) / df)
        cells = [measured(float(e), float(s), df) for e, s in zip(known, own, strict=True)]
        result = over(cells, 1, [1, 2, 4, 8])
        assert result.trend is not None
        at = 0.0, true[4], float(x @ true[:4] / (x @ x))
        for k, interval in enumerate((result.interval, result.prediction, result.trend.interval)):
            assert interval is not None
            held[k] += interval.low <= at[k] <= interval.high
    assert (held / n > 0.95 - 3 * math.sqrt(0.95 * 0.05 / n)).all(), held / n
