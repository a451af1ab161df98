"""Rows against the baseline: which share an error, what the others get, and interactions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ablate.analysis import spreads
from ablate.analysis.comparison import (
    ONE_TABLE,
    Comparison,
    Interaction,
    Promise,
    Quadruple,
    _Pool,
    compare,
    interaction,
)
from ablate.analysis.dunnett import critical_value, sidak_value, single_value
from ablate.analysis.spreads import slack
from ablate.analysis.statistics import Interval
from ablate.analysis.two_way import two_way

Values = dict[str, dict[int, float]]


def table(n_rows: int, n_seeds: int, *, factors: Mapping[int, float] | None = None) -> Values:
    """Return a table; without ``factors`` the rows have errors of the same size."""
    rng = np.random.default_rng(4)
    of_seeds = rng.normal(size=n_seeds)
    rows = {}
    for row in range(n_rows):
        errors = rng.normal(size=n_seeds)
        if factors is None and n_seeds > 1:
            errors *= 1 / (errors - errors.mean()).std()
        errors *= (factors or {}).get(row, 1.0)
        name = "baseline" if row == 0 else f"row_{row}"
        rows[name] = dict(enumerate(40 + row + of_seeds + errors, start=1))
    return rows


def cells(values: Values) -> np.ndarray:
    return np.array([list(of_row.values()) for of_row in values.values()])


def known(value: float | None) -> float:
    assert value is not None
    return value


def high(interval: Interval | None) -> float:
    assert interval is not None
    return interval.high


@pytest.mark.parametrize("promise", [ONE_TABLE, Promise(0.99, level_of_one=0.98, n_closed=2)])
def test_a_whole_table_has_dunnetts_intervals_around_the_mean_differences(promise: Promise) -> None:
    values = table(5, 3)
    compared = compare(values, promise=promise)
    n = 4 + promise.n_closed
    shared = critical_value([math.sqrt(0.5)] * n, 8, promise.level ** slack(n, 8))
    assert compared.df == 8
    assert compared.family.critical == pytest.approx(shared)
    of_rows = spreads.errors(two_way(np.ones((5, 3))), cells(values))
    for row, each in compared.differences.items():
        pairs = [values[row][seed] - values["baseline"][seed] for seed in (1, 2, 3)]
        error, df = (float(column[int(row[-1]) - 1]) for column in (of_rows.standard, of_rows.df))
        constant = float(stats.t.isf(stats.t.sf(shared, 8), df))
        assert (each.method, each.n, each.df) == ("moderated", 3, df)
        assert each.estimate == pytest.approx(np.mean(pairs))
        assert each.standard_error == pytest.approx(error)
        assert each.simultaneous is not None
        assert each.simultaneous.high == pytest.approx(np.mean(pairs) + constant * error)
        single = float(stats.t.ppf((1 + promise.level_of_one) / 2, df))
        assert high(each.single) == pytest.approx(np.mean(pairs) + single * error)
        is_different = each.simultaneous.low > 0 or each.simultaneous.high < 0
        assert (known(each.p) < 0.05) == is_different
        assert each.n_won == sum(pair > 0 for pair in pairs)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_variant_is_the_paired_t_test(sign: int) -> None:
    values = {row: {s: sign * v for s, v in of.items()} for row, of in table(2, 4).items()}
    each = compare(values).differences["row_1"]
    assert each.method == "two-way"
    theirs = stats.ttest_rel(list(values["row_1"].values()), list(values["baseline"].values()))
    assert each.p == pytest.approx(theirs.pvalue)
    ends = theirs.confidence_interval(0.95)
    assert each.simultaneous is not None
    assert (each.simultaneous.low, each.simultaneous.high) == pytest.approx((ends.low, ends.high))
    assert each.single == each.simultaneous


def test_one_seed_has_differences_and_nothing_else() -> None:
    compared = compare(table(4, 1))
    assert compared.sd is None
    assert compared.detectable is None
    for each in compared.differences.values():
        assert each.estimate is not None
        assert (each.single, each.simultaneous, each.p, each.n) == (None, None, None, 1)


def test_a_row_without_a_seed_of_the_baseline_is_compared_by_way_of_the_others() -> None:
    values = table(3, 4)
    values["baseline"] = {seed: values["baseline"][seed] for seed in (1, 2)}
    values["row_1"] = {seed: values["row_1"][seed] for seed in (3, 4)}
    each = compare(values).differences["row_1"]
    assert (each.n, each.method) == (0, "moderated")
    through = [
        np.mean([values[row][s] - values["row_2"][s] for s in values[row]]) for row in values
    ]
    assert each.estimate == pytest.approx(through[1] - through[0])
    del values["row_2"]
    assert compare(values).differences["row_1"].estimate is None


def test_a_row_whose_spread_departs_has_an_interval_of_its_own() -> None:
    values = table(6, 4, factors={3: 40.0})
    compared = compare(values)
    assert compared.departed == ("row_3",)
    assert compared.df == 4 * 3  # of the five rows that remain
    each = compared.differences["row_3"]
    pairs = [values["row_3"][seed] - values["baseline"][seed] for seed in (1, 2, 3, 4)]
    assert each.method == "paired"
    assert each.df == 3
    assert each.standard_error == pytest.approx(np.std(pairs, ddof=1) / 2)
    own = (high(each.simultaneous) - np.mean(pairs)) / (np.std(pairs, ddof=1) / 2)
    assert single_value(3) < own < sidak_value(5, 3, 0.95 ** slack(4, 12))
    detectable = compared.detectable
    assert detectable is not None
    assert detectable.high < known(each.standard_error), "it is of the rows that spread alike"
    others = [value for row, value in compared.differences.items() if row != "row_3"]
    assert {other.method for other in others} == {"moderated"}


def test_of_three_rows_one_can_depart_and_of_two_none() -> None:
    assert compare(table(3, 8, factors={2: 100.0})).departed == ("row_2",)
    assert compare(table(2, 8, factors={1: 100.0})).departed == ()


def test_a_row_departs_where_the_f_test_of_the_table_with_and_without_it_says_so() -> None:
    """By the residuals of both; the level is that of all rows together."""

    def squares(of: np.ndarray) -> float:
        of_rows, of_seeds = of.mean(axis=1, keepdims=True), of.mean(axis=0)
        return float(((of - of_rows - of_seeds + of.mean()) ** 2).sum())

    chances = []
    for factor in np.geomspace(2, 40, 40):
        values = table(4, 4, factors={2: factor})
        whole = cells(values)
        rest = np.delete(whole, 2, axis=0)
        ratio = (squares(whole) - squares(rest)) / 3 / (squares(rest) / 6)
        chances.append(4 * stats.f.sf(ratio, 3, 6))
        assert compare(values).departed == (("row_2",) if chances[-1] < 0.001 else ())
    assert sum(0.001 < chance < 0.004 for chance in chances) > 1
    assert sum(chance < 0.001 for chance in chances) > 1


@pytest.mark.parametrize("middle", [1.0, 8.0])
def test_a_row_that_has_all_of_the_error_departs(middle: float) -> None:
    """Its F ratio is infinite, or as large as rounding makes it."""
    values = {row: {1: 1.0, 2: 2.0, 3: 3.0} for row in ("baseline", "a", "b")}
    assert compare({**values, "wild": {1: 4.0, 2: middle, 3: 9.0}}).departed == ("wild",)


def test_two_rows_that_depart_are_both_seen() -> None:
    values = table(9, 5, factors={3: 40.0, 7: 60.0})
    assert compare(values).departed == ("row_3", "row_7")


def test_where_the_baseline_departs_every_row_is_by_itself() -> None:
    compared = compare(table(6, 4, factors={0: 40.0}))
    assert compared.departed == ("baseline",)
    assert {each.method for each in compared.differences.values()} == {"paired"}
    assert {each.df for each in compared.differences.values()} == {3}
    assert compared.df == 4 * 3
    for each in compared.differences.values():
        own = (high(each.simultaneous) - known(each.estimate)) / known(each.standard_error)
        assert own == pytest.approx(sidak_value(5, 3))


def test_a_diverged_seed_counts_as_0_and_leaves_no_interval() -> None:
    values = table(5, 3)
    whole = compare({row: of_row for row, of_row in values.items() if row != "row_2"})
    del values["row_2"][3]
    compared = compare(values, {"row_2": [3]})
    each = compared.differences["row_2"]
    baseline = values["baseline"]
    pairs = [values["row_2"][1] - baseline[1], values["row_2"][2] - baseline[2], -baseline[3]]
    assert each.method == "divergence as 0"
    assert each.estimate == pytest.approx(np.mean(pairs))
    assert (each.single, each.simultaneous, each.p) == (None, None, None)
    assert (each.n, each.n_won) == (3, sum(pair > 0 for pair in pairs))
    assert compared.diverged == ("row_2",)
    # the others are as they would be without it
    assert compared.sd == pytest.approx(whole.sd)
    assert compared.differences["row_1"] == whole.differences["row_1"]


def test_a_tie_is_no_win() -> None:
    values = table(3, 4)
    baseline = values["baseline"]
    values["row_1"] = {seed: value + (seed < 3) for seed, value in baseline.items()}
    values["row_2"] = dict(baseline)
    for diverged in (False, True):
        zeros = {"row_1": [5], "row_2": [5]} if diverged else {}
        differences = compare(values, zeros).differences
        assert [differences[row].n_won for row in ("row_1", "row_2")] == [2, 0]


def test_any_table_is_solved_by_least_squares() -> None:
    """Missing runs, or none: numpy's solver with a column for each row and each seed."""
    rng = np.random.default_rng(5)
    n_intervals = 0
    for _ in range(40):
        values = table(n_rows := int(rng.integers(3, 7)), n_seeds := int(rng.integers(3, 6)))
        for row in list(values)[1:]:
            if rng.random() < 0.5:
                del values[row][int(rng.integers(1, n_seeds + 1))]
        cells = [(r, s - 1, v) for r, of in enumerate(values.values()) for s, v in of.items()]
        design = np.zeros((len(cells), n_rows + n_seeds - 1))
        for number, (r, seed, _) in enumerate(cells):
            design[number, seed] = 1
            if r:
                design[number, n_seeds + r - 1] = 1
        target = np.array([value for *_, value in cells])
        solution, residual, rank, _ = np.linalg.lstsq(design, target)
        df = len(cells) - int(rank)
        compared = compare(values)
        if compared.departed:
            continue
        assert compared.df == df
        assert known(compared.sd) ** 2 == pytest.approx(residual[0] / df)
        for number, (row, each) in enumerate(compared.differences.items(), start=n_seeds):
            pairs = [v - values["baseline"][s] for s, v in values[row].items()]
            assert each.estimate == pytest.approx(solution[number])
            assert (each.n, each.n_won) == (len(pairs), sum(pair > 0 for pair in pairs))
            half = float(stats.t.ppf(0.975, each.df)) * known(each.standard_error)
            assert high(each.single) == pytest.approx(solution[number] + half)
            n_intervals += 1
    assert n_intervals > 60


def test_a_diverged_baseline_leaves_no_row_an_interval() -> None:
    values = table(4, 3)
    del values["baseline"][2]
    compared = compare(values, {"baseline": [2]})
    for row, each in compared.differences.items():
        assert each.method == "divergence as 0"
        assert each.simultaneous is None
        pairs = [values[row][1] - values["baseline"][1], values[row][2]]
        pairs += [values[row][3] - values["baseline"][3]]
        assert each.estimate == pytest.approx(np.mean(pairs))
    assert compared.sd is not None  # the other rows still tell how far seeds lie apart


def test_a_row_that_has_nothing_is_there_without_a_number() -> None:
    values = table(4, 3)
    values["row_2"] = {}
    each = compare(values).differences["row_2"]
    assert (each.estimate, each.n, each.method, each.simultaneous) == (None, 0, "none", None)


def test_a_value_without_bound_is_no_interval_and_spoils_no_other() -> None:
    values = table(5, 3)
    whole = compare({row: of_row for row, of_row in values.items() if row != "row_2"})
    values["row_2"][1] = math.inf
    compared = compare(values)
    each = compared.differences["row_2"]
    assert (each.estimate, each.simultaneous, each.method) == (math.inf, None, "none")
    assert compared.differences["row_1"] == whole.differences["row_1"]


def test_rows_without_error_differ_for_certain() -> None:
    values: Values = {"baseline": {1: 10.0, 2: 10.0}, "same": {1: 10.0, 2: 10.0}}
    values["more"] = {1: 12.0, 2: 12.0}
    compared = compare(values)
    assert [each.standard_error for each in compared.differences.values()] == [0, 0]
    assert [each.p for each in compared.differences.values()] == pytest.approx([1, 0])
    assert compared.departed == ()
    assert compared.detectable is None


def test_what_can_be_detected_is_of_the_pairs_done_and_found_in_4_of_5_tables() -> None:
    """By scipy's noncentral distribution."""
    values = table(5, 4)
    compared = compare(values)
    whole = compared.detectable
    assert whole is not None
    assert 1 < whole.high / whole.low < 1.5
    by_error = sorted(compared.differences.values(), key=lambda each: known(each.standard_error))
    for each, detected in ((by_error[0], whole.low), (by_error[-1], whole.high)):
        critical, shift = known(each.critical), detected / known(each.standard_error)
        power = stats.nct.sf(critical, each.df, shift) + stats.nct.cdf(-critical, each.df, shift)
        assert power == pytest.approx(0.8, abs=1e-4)
    for seed in (2, 3, 4):
        del values["row_1"][seed]
    partial = compare(values).detectable
    assert partial is not None
    assert partial.high > 1.5 * partial.low


@pytest.mark.parametrize("n_pairs", [1, 2])
def test_a_row_that_departs_needs_two_pairs_for_an_interval(n_pairs: int) -> None:
    rng = np.random.default_rng(0)
    seeds = {"baseline": range(1, 7), "a": range(1, 12), "b": range(1, 12), "c": range(1, 12)}
    values = {row: {seed: 40 + rng.normal() for seed in of_row} for row, of_row in seeds.items()}
    values["wild"] = {seed: 40 + 500 * rng.normal() for seed in range(7 - n_pairs, 12)}
    compared = compare(values)
    each = compared.differences["wild"]
    assert (compared.departed, each.n) == (("wild",), n_pairs)
    if n_pairs == 1:
        assert each.simultaneous is None
        return
    pairs = [values["wild"][seed] - values["baseline"][seed] for seed in (5, 6)]
    assert (each.method, each.single is not None) == ("paired", True)
    assert each.standard_error == pytest.approx(np.std(pairs, ddof=1) / 2**0.5)


def decoded(values: Values, row: str, name: str, *, sd: float = 0.1) -> None:
    """Add a row with the weights of another, and an error of decoding."""
    rng = np.random.default_rng(list(name.encode()))
    values[name] = {seed: value + 0.3 + sd * rng.normal() for seed, value in values[row].items()}


def estimate_and_error(compared: Comparison, *rows: str) -> list[tuple[float | None, ...]]:
    each = compared.differences
    return [(each[row].estimate, each[row].standard_error, each[row].df) for row in rows]


def test_rows_with_the_weights_of_the_baseline_are_compared_without_the_error_of_training() -> None:
    values = table(5, 3)
    without, names = compare(values), ("greedy", "wide", "sample")
    for name in names:
        decoded(values, "baseline", name)
    compared = compare(values, trained_by=dict.fromkeys(names, "baseline"))
    rows = ("row_1", "row_2", "row_3", "row_4")
    assert estimate_and_error(compared, *rows) == estimate_and_error(without, *rows)
    assert (compared.sd, compared.df) == (without.sd, without.df)
    assert compared.sharing == dict.fromkeys(names, "baseline")
    for name in names:
        each = compared.differences[name]
        paired = stats.ttest_rel(list(values[name].values()), list(values["baseline"].values()))
        single = paired.confidence_interval(0.95)
        assert (each.method, each.df) == ("shared", 2)
        assert each.single is not None
        assert (each.single.low, each.single.high) == pytest.approx((single.low, single.high))
    assert compared.family.n_separate == 3
    assert known(compared.family.critical) > known(without.family.critical)
    assert known(compared.differences["greedy"].standard_error) < 0.2
    trained_again = compare(values)  # as if they had errors of their own
    assert known(trained_again.sd) < 0.9 * known(compared.sd)


def test_a_row_with_the_weights_of_another_stands_in_its_place() -> None:
    values = table(5, 3)
    without = compare(values)
    decoded(values, "row_2", "row_2 greedy")
    compared = compare(values, trained_by={"row_2 greedy": "row_2"})
    rows = ("row_1", "row_2", "row_3", "row_4")
    assert estimate_and_error(compared, *rows) == estimate_and_error(without, *rows)
    instead = {row if row != "row_2" else "row_2 greedy": of for row, of in values.items()}
    instead["row_2 greedy"] = values["row_2 greedy"]
    alone = compare({row: instead[row] for row in list(instead)[:5]})
    ours, theirs = (estimate_and_error(each, "row_2 greedy")[0] for each in (compared, alone))
    assert ours == pytest.approx(theirs)


def test_a_row_with_the_weights_of_one_that_diverged_has_an_error_of_its_own() -> None:
    values = table(5, 3)
    decoded(values, "row_2", "row_2 greedy")
    for row in ("row_2", "row_2 greedy"):
        del values[row][3]
    compared = compare(values, {"row_2": [3]}, trained_by={"row_2 greedy": "row_2"})
    alone = compare({row: of_row for row, of_row in values.items() if row != "row_2"})
    assert compared.differences["row_2 greedy"] == alone.differences["row_2 greedy"]


def test_rows_that_all_have_one_training_have_intervals_of_their_own_pairs() -> None:
    values = table(4, 3)
    compared = compare(values, trained_by=dict.fromkeys(list(values)[1:], "baseline"))
    assert compared.sd is None
    assert {each.method for each in compared.differences.values()} == {"shared"}
    for each in compared.differences.values():
        half = high(each.simultaneous) - known(each.estimate)
        assert half == pytest.approx(sidak_value(3, 2) * known(each.standard_error))


@pytest.mark.parametrize(("n_rows", "smaller"), [(5, 8), (11, 19)])
def test_a_table_has_the_least_slack_of_all_rows_that_stand_in_it(
    n_rows: int, smaller: int
) -> None:
    """With a seed less, a row in another's place leaves the error a degree of freedom less."""
    values = table(n_rows, 3)
    decoded(values, "row_2", "row_2 greedy")
    del values["row_2 greedy"][3]
    compared = compare(values, trained_by={"row_2 greedy": "row_2"})
    k = n_rows - 1
    slacks = {df: slack(k, df) for df in (2 * k, 2 * k - 1)}
    assert min(slacks, key=lambda df: slacks[df]) == smaller
    assert compared.family.slack == slacks[smaller]


def test_a_row_alone_has_no_slack() -> None:
    assert _Pool({"baseline": {1: 40.0, 2: 41.0}}, "baseline", 0).slack == 1


def test_a_row_with_the_weights_and_values_of_the_baseline_is_the_same() -> None:
    values = table(5, 3)
    without = compare(values)
    values["twin"] = dict(values["baseline"])
    compared = compare(values, trained_by={"twin": "baseline"})
    twin = compared.differences["twin"]
    assert (twin.method, twin.estimate, twin.n, twin.simultaneous) == ("same", 0.0, 3, None)
    assert compared.family == without.family
    del compared.differences["twin"]  # type: ignore[attr-defined]
    assert compared.differences == without.differences


def test_a_row_whose_pairs_with_the_baseline_are_missing_is_not_the_same() -> None:
    values = table(4, 4)
    values["apart"] = {}
    assert compare(values, trained_by={"apart": "baseline"}).differences["apart"].method == "none"


def test_an_interaction_of_rows_that_share_weights_has_the_error_of_its_own_values() -> None:
    values = {**_values(3), **{f"row {n}": of for n, of in enumerate(_values(9).values())}}
    decoded(values, "second", "both", sd=0.01)
    decoded(values, "neither", "first", sd=0.01)
    compared = compare(
        {row: values[row] for row in reversed(values)},
        trained_by={"both": "second", "first": "neither"},
    )
    actual = interaction(ROWS, values, compared)
    assert actual is not None
    assert actual.interval is not None
    assert actual.interval.high - actual.interval.low < 0.2
    assert known(compared.sd) > 0.05


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


@pytest.mark.parametrize(("n_intervals", "level"), [(1, 0.95), (10, 0.95), (10, 0.99)])
def test_the_error_is_that_of_the_additive_model(n_intervals: int, level: float) -> None:
    """Four times the mean square of its residuals over the seeds, on 3 x 2 degrees of freedom."""
    values = _values(1)
    actual = interaction(ROWS, values, compare(values, promise=Promise(level)), n_intervals)
    of = cells(values)
    residuals = of - of.mean(axis=0) - of.mean(axis=1, keepdims=True) + of.mean()
    half = stats.t.ppf((1 + level ** (1 / n_intervals)) / 2, 6) * math.sqrt(
        4 * (residuals**2).sum() / 6 / 3
    )
    assert actual is not None
    assert high(actual.interval) == pytest.approx(actual.estimate + half)


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
