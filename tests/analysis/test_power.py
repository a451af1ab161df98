"""What a table can find: the power of the t test, and the fewest seeds."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from ablate.analysis import sequential
from ablate.analysis.dunnett import critical_value
from ablate.analysis.power import MOST_SEEDS, detectable, seeds_for
from ablate.analysis.spreads import slack


@pytest.mark.parametrize("n", [3, 10, 40])
def test_one_row_is_found_as_by_the_paired_t_test(n: int) -> None:
    shift = detectable(1.5, 1, n) / (1.5 * math.sqrt(2 / n))
    critical = stats.t.ppf(0.975, n - 1)
    power = stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift)
    assert power == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("n_rows", "level"), [(4, 0.95), (15, 0.95), (4, 0.99)])
def test_several_rows_are_found_by_the_constant_of_a_table(n_rows: int, level: float) -> None:
    """By scipy's noncentral distribution."""
    df = 2 * n_rows
    constant = critical_value([math.sqrt(0.5)] * n_rows, df, level ** slack(n_rows, df))
    t = stats.nct(df, detectable(1.5, n_rows, 3, level) / (1.5 * math.sqrt(2 / 3)))
    assert t.sf(constant) + t.cdf(-constant) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("size", "sd", "rows"), [(1.0, 1.6, 4), (0.5, 0.33, 4), (2.0, 1.5, 110)])
def test_no_fewer_seeds_find_a_difference(size: float, sd: float, rows: int) -> None:
    n = seeds_for(size, sd, rows)
    assert n is not None
    assert detectable(sd, rows, n) <= size < detectable(sd, rows, n - 1)


def test_some_differences_are_too_small() -> None:
    assert seeds_for(detectable(1.0, 4, MOST_SEEDS), 1.0, 4) == MOST_SEEDS
    assert seeds_for(detectable(1.0, 4, MOST_SEEDS) * 0.999, 1.0, 4) is None
    assert seeds_for(1e9, 1.0, 4) == 2


def test_looks_find_a_little_less_than_a_table_of_their_last_seeds() -> None:
    level = sequential.levels((3, 5, 8, 12), 4)[-1]
    assert 1 < detectable(1.0, 4, 12, level) / detectable(1.0, 4, 12) < 1.1
