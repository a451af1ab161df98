"""Rows of one table against the same rows of another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from ablate.analysis.comparison import DEPARTURE_LEVEL
from ablate.analysis.spreads import prior_df
from ablate.analysis.two_tables import RowSample, Shift, _chance, _Error, _pool, compare_matched

SEEDS = (1, 2, 3, 4)


def sample(*values: float, first: int = 1) -> RowSample:
    return RowSample.of(dict(enumerate(values, start=first)))


def ends(shift: Shift) -> list[float]:
    assert shift.simultaneous is not None
    assert shift.single is not None
    return [end for each in (shift.simultaneous, shift.single) for end in (each.low, each.high)]


def test_one_row_of_pairs_has_student_s_interval() -> None:
    before, after = (40.0, 41.5, 39.0), (41.0, 41.9, 40.7)
    shift = compare_matched({"a": (sample(*before), sample(*after))})["a"]
    expected = stats.ttest_rel(after, before).confidence_interval()
    assert (shift.method, shift.n, shift.df) == ("paired", 3, 2)
    assert ends(shift) == pytest.approx([expected.low, expected.high] * 2)


def test_without_pairs_one_row_has_welch_s_interval() -> None:
    before, after = (40.0, 41.5, 39.0), (41.0, 41.9, 40.7, 43.0)
    pair = sample(*before), sample(*after, first=11)
    shift = compare_matched({"a": pair})["a"]
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval()
    assert (shift.method, shift.n) == ("unpaired", 3)
    assert ends(shift) == pytest.approx([expected.low, expected.high] * 2)
    assert compare_matched({"a": (pair[1], pair[0])})["a"].n == 3
    two = compare_matched({"a": pair, "b": pair})["a"].simultaneous
    of_both = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95**0.5)
    assert two is not None
    assert (two.low, two.high) == pytest.approx((of_both.low, of_both.high))
    one, other = (RowSample(each.n, each.mean, each.sd) for each in pair)
    assert compare_matched({"a": (one, other)})["a"] == shift  # a table tells no values


def test_what_is_equal_to_the_last_bit_is_no_estimate() -> None:
    one, table = sample(1.0, 2.0), RowSample(3, 1.5, 0.1)
    shifts = compare_matched({"a": (one, one), "b": (table, table), "c": (one, sample(1.0, 2.1))})
    assert [shift.method for shift in shifts.values()] == ["equal", "equal", "paired"]
    assert [shift.n for shift in shifts.values()] == [2, 3, 2]
    assert shifts["a"].simultaneous is None
    assert shifts["c"].df == 1  # equal rows lend no degrees of freedom
    zeros = sample(0.0, 0.0), sample(0.0, 0.0, first=3)  # of other runs, as a BLEU of 0 is
    assert compare_matched({"a": zeros})["a"].method == "unpaired"


def test_means_that_are_equal_by_chance_have_an_interval() -> None:
    opposite = sample(1.0, 2.0), sample(2.0, 1.0)
    of_means = RowSample(3, 1.5, 0.1), RowSample(3, 1.5, 0.2)
    shifts = compare_matched({"a": opposite, "b": of_means})
    assert [shift.estimate for shift in shifts.values()] == [0, 0]
    assert [shift.method for shift in shifts.values()] == ["paired", "unpaired"]


def test_one_seed_has_no_interval() -> None:
    shift = compare_matched({"a": (sample(1.0), sample(3.0))})["a"]
    assert (shift.estimate, shift.method, shift.simultaneous) == (2.0, "none", None)


def test_a_value_without_bound_has_no_interval() -> None:
    for before, after in (((1.0, 2.0), (math.inf, 2.0)), ((math.inf, 2.0), (1.0, math.inf))):
        shift = compare_matched({"a": (sample(*before), sample(*after))})["a"]
        assert (shift.method, shift.simultaneous) == ("none", None)


def test_rows_of_pairs_have_errors_between_their_own_and_the_pooled_one() -> None:
    pairs = {"a": (0.1, 0.4, 0.7), "b": (1.1, 0.8, 1.4, 3.0, 2.1), "c": (0.0, 0.5)}
    zeros = sample(*[0.0] * 5)
    shifts = compare_matched({row: (zeros, sample(*values)) for row, values in pairs.items()})
    variances = np.array([np.var(values, ddof=1) for values in pairs.values()])
    df = np.array([2, 4, 1])
    pooled = variances @ df / 7
    prior = prior_df(variances / pooled, df).item()
    for shift, own, n in zip(shifts.values(), variances, df + 1, strict=True):
        moderated = (prior * pooled + (n - 1) * own) / (prior + n - 1)
        assert shift.standard_error == pytest.approx(math.sqrt(moderated / n))
        assert shift.df == pytest.approx(min(prior + n - 1, 7))
        assert shift.simultaneous is not None
        assert shift.standard_error is not None
        own_constant = (shift.simultaneous.high - shift.estimate) / shift.standard_error
        constant = float(stats.t.isf(stats.t.sf(own_constant, shift.df), 7))  # as rare as this one
        # of the maximum of three |T| that share an error of 7 degrees and nothing else
        held, _ = integrate.quad(
            lambda s, c=constant: (
                (2 * stats.norm.cdf(c * s) - 1) ** 3
                * stats.chi.pdf(s * math.sqrt(7), 7)
                * math.sqrt(7)
            ),
            0,
            10,
        )
        assert held == pytest.approx(0.95, abs=1e-6)


def test_a_row_that_spreads_more_has_a_wider_interval_of_its_own() -> None:
    rng = np.random.default_rng(1)
    zeros = sample(*[0.0] * len(SEEDS))
    quiet = {f"row {n}": (zeros, sample(*rng.normal(0, 0.1, len(SEEDS)))) for n in range(4)}
    wild = compare_matched({**quiet, "wild": (zeros, sample(-9.0, 8.0, 1.0, -3.0))})
    assert wild["wild"].df == len(SEEDS) - 1
    alone = compare_matched(quiet)
    assert all(wild[row].standard_error == alone[row].standard_error for row in quiet)


def test_of_two_rows_neither_departs() -> None:
    zeros = sample(0.0, 0.0, 0.0)
    pairs = {"a": (zeros, sample(0.0, 0.1, 0.2)), "b": (zeros, sample(-900.0, 800.0, 5.0))}
    assert (compare_matched(pairs)["a"].df or 0) > 2


def test_two_samples_without_spread_have_the_degrees_of_freedom_of_both() -> None:
    shift = compare_matched({"a": (sample(1.0, 1.0, 1.0), sample(2.0, 2.0, first=11))})["a"]
    assert (shift.estimate, shift.standard_error, shift.df) == (1.0, 0.0, 3)


def test_the_chance_of_so_large_a_spread_is_that_of_an_f_test() -> None:
    pool = {"a": _Error(1.0, 3), "b": _Error(2.0, 4), "wild": _Error(6.0, 2)}
    rest = (1.0 * 3 + 2.0 * 4) / 7
    assert _chance(pool, "wild") == pytest.approx(stats.f.sf(6.0 / rest, 2, 7))


@pytest.mark.parametrize(("share", "departs"), [(0.9, True), (1.1, False)])
def test_of_n_rows_one_departs_at_an_nth_of_the_level(share: float, departs: bool) -> None:
    """The variance is what a row's F test of 2 and 9 degrees rejects at that share of it."""
    variance = stats.f.isf(share * DEPARTURE_LEVEL / 4, 2, 9)
    quiet = {name: _Error(1.0, 3) for name in "abc"}
    assert ("wild" not in _pool(quiet | {"wild": _Error(variance, 2)})) == departs


def test_of_rows_without_spread_one_that_has_some_departs_for_certain() -> None:
    none, some = _Error(0.0, 2), _Error(0.1, 2)
    assert _chance({"a": none, "b": none, "c": some}, "c") == 0
    assert _chance({"a": none, "b": none, "c": none}, "c") == 1
