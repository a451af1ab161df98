"""Tables of many rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.comparison import Comparison, Difference, compare
from ablate.analysis.dunnett import Family
from ablate.analysis.ranking import discoveries, selection_bias


def table(effects: np.ndarray, n_seeds: int = 5, seed: int = 0) -> dict[str, dict[int, float]]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((len(effects) + 1, n_seeds)) + rng.standard_normal(n_seeds)
    values[1:] += effects[:, None]
    names = ["baseline", *(f"row {n}" for n in range(len(effects)))]
    return {name: dict(enumerate(of)) for name, of in zip(names, values.tolist(), strict=True)}


def test_discoveries_are_those_of_scipys_procedure() -> None:
    for seed in range(20):
        compared = compare(table(np.linspace(-4, 4, 25), seed=seed))
        rows = compared.differences
        p = [2 * stats.t.sf(abs(e.estimate / e.standard_error), e.df) for e in rows.values()]  # type: ignore[operator]
        adjusted = stats.false_discovery_control(p)
        expected = {row for row, q in zip(rows, adjusted, strict=True) if q <= 0.05}
        assert set(discoveries(compared)) == expected


def test_a_row_is_a_discovery_if_the_rows_with_it_are_though_not_without_them() -> None:
    """The procedure steps up: 0.02 is above 0.05 / 4, and 0.035 below 3 * 0.05 / 4."""
    p_values = {"a": 0.02, "b": 0.035, "c": 0.03, "d": 0.2}
    rows = {
        row: Difference(float(-stats.t.isf(p / 2, 8)), 3, 0, "moderated", 1.0, 8)
        for row, p in p_values.items()
    }
    assert discoveries(Comparison(rows, 1.0, 8, Family((), 0))) == ["a", "c", "b"]


def test_there_are_more_discoveries_than_simultaneous_differences() -> None:
    compared = compare(table(np.repeat([0.0, 3.0], 20)))
    significant = {
        row for row, e in compared.differences.items() if e.simultaneous and e.simultaneous.low > 0
    }
    assert significant < set(discoveries(compared))


def test_a_row_without_an_error_is_no_discovery_and_one_that_differs_for_certain_is() -> None:
    values = {"baseline": {1: 1.0, 2: 1.0}, "more": {1: 2.0, 2: 2.0}, "same": {1: 1.0, 2: 1.0}}
    assert discoveries(compare({**values, "one": {}})) == ["more"]


def test_the_bias_of_the_best_is_what_they_lose_with_new_seeds() -> None:
    """Of 40 equal rows: the mean of the best 5 of 40 normal means, by simulation."""
    n, effects = 200, np.zeros(40)
    estimated = [selection_bias(table(effects, 4, seed), 5) for seed in range(n)]
    means = np.random.default_rng(1).standard_normal((20_000, 40)) / np.sqrt(3)
    expected = np.sort(means, axis=1)[:, -5:].mean()
    assert np.mean([each for each in estimated if each is not None]) == pytest.approx(
        expected, abs=0.1
    )
    apart = table(np.arange(40) * 50.0)  # each is what it is
    assert selection_bias(apart, 5) == pytest.approx(0, abs=1e-9)
    equal = table(effects, 4)
    shifted = {row: {s: v + 9 * s for s, v in of.items()} for row, of in equal.items()}
    assert selection_bias(shifted, 5) == pytest.approx(
        selection_bias(equal, 5)
    )  # what a seed does to all rows


def test_the_better_of_two_rows_has_a_bias() -> None:
    """Of three seeds: the better of two without one of them, less its value with that one."""
    values = {"baseline": dict.fromkeys(range(3), 0.0), "a": {0: 1.0, 1: 2.0, 2: 6.0}}
    values["b"] = {0: 4.0, 1: 2.0, 2: 1.0}
    without = [(2 + 6) / 2 - 1, (1 + 6) / 2 - 2, (4 + 2) / 2 - 1]
    assert selection_bias(values, 1) == pytest.approx(np.mean(without))


@pytest.mark.parametrize("lack", ["seeds", "best", "too many", "bound"])
def test_without_seeds_or_rows_to_select_there_is_no_bias(lack: str) -> None:
    values = table(np.zeros(4), n_seeds=2 if lack == "seeds" else 3)
    if lack == "bound":
        values["row 0"][0] = float("inf")
    assert selection_bias(values, {"best": 0, "too many": 5}.get(lack, 2)) is None
