"""How often is a table wrong: false differences, and differences that are not detected?

Run it:  python benchmarks/table_errors.py [--n 100000] [--output FILE]
         python benchmarks/table_errors.py --slack --n 200000    the constants of `spreads.slack`

Each simulation is a whole table, judged by the functions that `ablate report` calls. Rates are
printed with their Monte Carlo error. Ends with 1 if one is not what is promised: a false difference
in at most 5% of tables whose rows have equal spreads; in at most 6.5% where the logarithms of the
spreads have a standard deviation of 0.25 or 0.41, where the baseline spreads twice as much as the
others, or where the others share half of the variance of their errors, within three Monte Carlo
errors. Of tables of 100 rows and of rows that share weights there are a fifth as many.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from records import RESULTS, origin, say, write
from scipy import special, stats

from ablate.analysis import spreads
from ablate.analysis.comparison import DEPARTURE_LEVEL, compare
from ablate.analysis.dunnett import Family, coverage, single_value
from ablate.analysis.two_way import two_way

Floats = NDArray[np.float64]
Generator = np.random.Generator
Draw = Callable[[Generator, tuple[int, ...]], Floats]

SIZES = ((4, 3), (4, 5), (15, 3), (15, 5), (25, 3), (25, 5), (110, 5), (200, 10))
"""Rows beside the baseline, and seeds."""

SPREAD_NEAR, SPREAD_FAR = 0.25, 0.41
"""Standard deviations of the logarithm of the rows' spreads over seeds.

As measured by the rows of docs/findings.md with 4 seeds: of the 5 within 5 BLEU of their baseline
the logarithms have the variance 0.066, which is less than the 0.234 that 4 seeds make of equal
ones; of all 15, many of them far from their baseline, 0.399, which leaves 0.41 squared.
"""

OF_SEEDS = 0.35
"""The share of the variance of BLEU that all rows owe to the seed, as measured."""

MOST_EQUAL, MOST_APART = 0.05, 0.065
EFFECT = 2.5
FEWEST_ADDED, MOST_ADDED = 3, 10  # seeds of a table to which seeds are added
_LARGE = 100  # rows
_CELLS = 200_000  # of the tables that are drawn at a time
_FAILED = 8.0  # standard deviations below the other runs


def _failing(rng: Generator, shape: tuple[int, ...]) -> Floats:
    values = rng.standard_normal(shape) - _FAILED * (rng.random(shape) < 0.05)
    return (values + _FAILED * 0.05) / math.sqrt(1 + _FAILED**2 * 0.05 * 0.95)


SHAPES: dict[str, Draw] = {  # each of mean 0 and standard deviation 1
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "skewed to failures (gamma, shape 4)": lambda rng, shape: (4 - rng.gamma(4, 1, shape)) / 2,
    "heavy tails (Student, 5 df)": lambda rng, shape: rng.standard_t(5, shape) / math.sqrt(5 / 3),
    "1 run in 20 is 8 sd below": _failing,
}


@dataclass(frozen=True)
class Setting:
    """The distribution of tables.

    Attributes:
        name: for the printed table.
        variants: rows beside the baseline.
        seeds: of each row.
        shape: of the errors, one of `SHAPES`.
        spread: standard deviation of the logarithm of the rows' spreads, which are 1 at the middle.
        baseline: how many times as much the baseline spreads.
        in_common: share of the variance of their errors that the rows beside the baseline share.
        sharing: how many of the last rows have the weights of the baseline or of the row above them
            all, by turns, and beside its error one of decoding, a fifth as large.
        effect: by how many standard deviations the first row differs.
        diverging: share of runs that diverge.
        n_missing: runs of each table that are missing.
        most: the largest promised share of tables with a false difference; None: no promise.
    """

    name: str
    variants: int
    seeds: int
    shape: str = "normal"
    spread: float = 0.0
    baseline: float = 1.0
    in_common: float = 0.0
    sharing: int = 0
    effect: float = 0.0
    diverging: float = 0.0
    n_missing: int = 0
    most: float | None = None

    @property
    def trained_by(self) -> dict[str, str]:
        """The rows that share weights, each with the one whose weights it has."""
        first = self.variants - self.sharing
        return {str(first + 1 + n): str(n % 2 * first) for n in range(self.sharing)}

    def draw(self, rng: Generator, n: int) -> Floats:
        """Return tables (n, R, S): NaN where a run is missing, infinite where it diverged."""
        rows = self.variants + 1
        own = np.exp(self.spread * rng.standard_normal((n, rows, 1)))
        of_seed = math.sqrt(OF_SEEDS / (1 - OF_SEEDS)) * math.exp(self.spread**2)
        values = SHAPES[self.shape](rng, (n, rows, self.seeds)) * own
        values[:, 0] *= self.baseline
        if self.in_common:
            of_all = rng.standard_normal((n, 1, self.seeds))
            values[:, 1:] *= math.sqrt(1 - self.in_common)
            values[:, 1:] += math.sqrt(self.in_common) * of_all
        values += of_seed * rng.standard_normal((n, 1, self.seeds))
        for row, trained in self.trained_by.items():
            own = 0.2 * rng.standard_normal((n, self.seeds))
            values[:, int(row)] = values[:, int(trained)] + own
        values[:, 1] += self.effect
        values[rng.random(values.shape) < self.diverging] = math.inf
        if self.n_missing:
            ranks = rng.random((n, rows * self.seeds)).argsort(axis=1).argsort(axis=1)
            values[(ranks < self.n_missing).reshape(values.shape)] = math.nan
        return values


@dataclass(frozen=True)
class Judged:
    """Tables with their intervals, (tables, K) each; NaN where a row has none."""

    estimates: Floats
    half_widths: Floats
    single_half_widths: Floats
    is_apart: NDArray[np.bool_]

    @classmethod
    def empty(cls, n: int, variants: int) -> Judged:
        """Return judgements to be filled in."""
        estimates, half_widths, single = np.full((3, n, variants), math.nan)
        return cls(estimates, half_widths, single, np.zeros((n, variants), dtype=bool))


@dataclass(frozen=True)
class Rates:
    """The results of the simulations of one setting.

    Attributes:
        wrong: share of tables in which some simultaneous interval leaves out the true difference.
        wrong_error: its Monte Carlo error.
        wrong_paired: likewise of 95% intervals of paired differences, each by itself.
        single: share of single intervals that leave it out.
        half_width: mean of the simultaneous intervals, in standard deviations of a run.
        half_width_paired: likewise of those of paired differences.
        apart: share of rows that got an interval of their own.
    """

    setting: Setting
    n_simulations: int
    wrong: float
    wrong_error: float
    wrong_paired: float
    single: float
    half_width: float
    half_width_paired: float
    apart: float

    @property
    def holds(self) -> bool:
        """Whether the share is as promised, within three Monte Carlo errors."""
        most = self.setting.most
        return most is None or self.wrong <= most + 3 * self.wrong_error


def main() -> int:
    """Simulate every setting, print and write the rates; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=100_000, help="tables of each setting")
    parser.add_argument("--output", type=Path, default=RESULTS / "table_errors.json")
    parser.add_argument(
        "--slack", action="store_true", help="print the constants of `spreads.slack`"
    )
    options = parser.parse_args()
    if options.slack:
        return _print_slack(options.n)
    say(f"{'no row differs':36}{'rows':>5}{'seeds':>6}{'false':>8}{'±':>7}{'paired':>8}", end="")
    say(f"{'one row':>9}{'width':>7}{'paired':>8}{'apart':>8}")
    false = [_printed(rates(setting, options.n)) for setting in settings()]
    say(f"\n{'one row differs by 2.5 sd: actual by':36}{'rows':>5}{'seeds':>6}{'table':>8}", end="")
    say(f"{'paired t, Holm':>16}")
    power = [_power(Setting("power", k, n, effect=EFFECT), options.n) for k, n in SIZES]
    say(f"\n{'seeds added until significant':36}{'rows':>5}{'seeds':>6}{'false':>8}{'±':>7}")
    added = [_adding(k, options.n // 5) for k in (4, 15, 25)]
    content = {"false_differences": [asdict(each) for each in false], "power": power}
    write(options.output, {**origin("cpu"), **content, "added_seeds": added})
    return 0 if all(each.holds for each in false) else 1


def _print_slack(n: int) -> int:
    for seeds in spreads.SEEDS:
        slacks = ", ".join(f"{slack(rows, seeds, n):.2f}" for rows in spreads.ROWS)
        say(f"({slacks}),  # {seeds} seeds")
    return 0


def slack(variants: int, seeds: int, n: int) -> float:
    """Return the power of the level at which of ``n`` tables no more are wrong than promised."""
    if variants == 1:
        return 1.0  # two rows have Student's interval of their pairs
    n = min(n, max(20_000, 40_000_000 // (variants * seeds)))
    pooled_df, tails = variants * (seeds - 1), list[float]()
    for setting in promised(variants, seeds):
        assert setting.most is not None, "something is promised"
        rng = np.random.default_rng([*setting.name.encode(), variants, seeds])
        least = []
        for values in chunks(setting, rng, n):
            estimates, standard, df, _ = _fits(values)
            least.append(special.stdtr(df, -np.abs(estimates) / standard).min(axis=1))
        tails.append(float(np.quantile(np.concatenate(least), setting.most)))
    largest = -special.stdtrit(pooled_df, min(tails))
    covered = coverage(largest, [0.5**0.5] * variants, pooled_df)
    return math.log(covered) / math.log(1 - MOST_EQUAL)


def chunks(setting: Setting, rng: Generator, n: int) -> Iterator[Floats]:
    """Yield ``n`` tables, some at a time."""
    size = max(1, _CELLS // ((setting.variants + 1) * setting.seeds))
    for start in range(0, n, size):
        yield setting.draw(rng, min(size, n - start))


def promised(k: int, n: int) -> Iterator[Setting]:
    """Yield the settings of ``k`` rows and ``n`` seeds of which something is promised."""
    yield Setting("equal spreads", k, n, most=MOST_EQUAL)
    yield Setting("spreads 0.25 apart", k, n, spread=SPREAD_NEAR, most=MOST_APART)
    yield Setting("spreads 0.41 apart", k, n, spread=SPREAD_FAR, most=MOST_APART)
    yield Setting("a baseline of twice the spread", k, n, baseline=2.0, most=MOST_APART)
    yield Setting("rows share half of their variance", k, n, in_common=0.5, most=MOST_APART)


def settings() -> Iterator[Setting]:
    """Yield the settings in which no row differs from the baseline."""
    for of_size in zip(*(promised(k, n) for k, n in SIZES), strict=True):
        yield from of_size
    for shape in list(SHAPES)[1:]:
        for k, n in SIZES[:6:2]:
            yield Setting(shape, k, n, shape=shape)
    for k, n in SIZES[:6:2]:
        yield Setting("1 run in 20 diverges", k, n, diverging=0.05, most=MOST_EQUAL)
    for k, n, sharing in ((4, 3, 2), (15, 3, 8), (25, 5, 12)):
        name = f"{sharing} rows share weights"
        yield Setting(name, k, n, sharing=sharing, most=MOST_EQUAL)
    yield Setting("2 runs of 15 are missing", 4, 3, n_missing=2, most=MOST_EQUAL)


def rates(setting: Setting, n: int) -> Rates:
    """Judge ``n`` tables; of large ones a fifth as many."""
    n = n if setting.variants < _LARGE and not setting.sharing else n // 5
    rng = np.random.default_rng([*setting.name.encode(), setting.variants, setting.seeds])
    true = np.zeros(setting.variants)
    true[0] = setting.effect
    parts = []
    for values in chunks(setting, rng, n):
        judged, (mean, half) = judge(values, setting.trained_by), paired_intervals(values)
        miss = np.abs(judged.estimates - true)
        known = ~np.isnan(judged.half_widths)
        parts.append(
            (
                len(values),
                (miss > judged.half_widths).any(axis=1).mean(),
                (np.abs(mean - true) > half).any(axis=1).mean(),
                (miss > judged.single_half_widths)[known].mean(),
                judged.half_widths[known].mean(),
                np.nanmean(half),
                judged.is_apart[known].mean(),
            )
        )
    weights, *columns = np.array(parts).T
    wrong, paired, single, width, paired_width, apart = np.average(columns, 1, weights).tolist()
    return Rates(setting, n, wrong, _error(wrong, n), paired, single, width, paired_width, apart)


def judge(values: Floats, trained_by: Mapping[str, str] | None = None) -> Judged:
    """Return the intervals of tables (n, R, S), as `compare` makes them of each."""
    judged = Judged.empty(len(values), values.shape[1] - 1)
    if trained_by:
        for table, each in enumerate(values):
            for ours, theirs in zip(
                _arrays(judged), _arrays(_judge_one(each, trained_by)), strict=True
            ):
                ours[table] = theirs[0]
        return judged
    has_diverged = np.asarray(np.isposinf(values).any(axis=2))  # (n, R)
    is_complete = ~np.asarray(np.isnan(values).any(axis=(1, 2)))
    n_kept = np.where(has_diverged[:, 0] | ~is_complete, 0, (~has_diverged).sum(axis=1))
    for n_rows in map(int, np.unique(n_kept[n_kept > 1])):
        at = np.flatnonzero(n_kept == n_rows)
        rows = np.argsort(has_diverged[at], axis=1, kind="stable")[:, :n_rows]
        of_kept = _judge_complete(np.take_along_axis(values[at], rows[:, :, None], axis=1))
        for ours, theirs in zip(_arrays(judged), _arrays(of_kept), strict=True):
            ours[at[:, None], rows[:, 1:] - 1] = theirs
    for each in np.flatnonzero(~is_complete):
        for ours, theirs in zip(_arrays(judged), _arrays(_judge_one(values[each])), strict=True):
            ours[each] = theirs[0]
    return judged


def _judge_complete(values: Floats) -> Judged:
    """Judge tables without missing runs, all at once."""
    n_tables, n_rows, n_seeds = values.shape
    estimates, standard, df, kept = _fits(values)
    tails = np.empty((n_tables, 1))
    for n_kept in np.unique(n_pooled := np.where(kept[:, 0], kept.sum(axis=1), 0)):
        k = max(int(n_kept) - 1, 0)
        pooled_df = k * (n_seeds - 1)
        of_pool = spreads.slack(k, pooled_df) if k else 1.0
        family = Family((math.sqrt(0.5),) * k, pooled_df, n_rows - 1 - k, of_pool)
        tails[n_pooled == n_kept] = special.stdtr(n_seeds - 1, -family.critical_of(n_seeds - 1))
    return Judged(
        estimates,
        standard * -special.stdtrit(df, tails),
        standard * -special.stdtrit(df, 0.025),
        ~kept[:, 1:] | ~kept[:, :1],
    )


def _fits(values: Floats) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Return estimates, standard errors, their degrees of freedom (n, K), and who stays (n, R)."""
    n_seeds, kept = values.shape[2], _staying(values)
    pairs = values[:, 1:] - values[:, :1]
    estimates = pairs.mean(axis=2)
    standard = pairs.std(axis=2, ddof=1) / math.sqrt(n_seeds)
    df = np.full(estimates.shape, n_seeds - 1.0)
    n_pooled = np.where(kept[:, 0], kept.sum(axis=1), 0)
    for n_kept in np.unique(n_pooled[n_pooled > 0]):
        at = np.flatnonzero(n_pooled == n_kept)
        rows = np.argsort(~kept[at], axis=1, kind="stable")[:, :n_kept]
        pool = np.take_along_axis(values[at], rows[:, :, None], axis=1)
        fit = spreads.errors(two_way(np.ones(pool.shape[1:], dtype=bool)), pool)
        standard[at[:, None], rows[:, 1:] - 1] = fit.standard
        df[at[:, None], rows[:, 1:] - 1] = fit.df
    return estimates, standard, df, kept


def _staying(values: Floats) -> NDArray[np.bool_]:
    """Return which rows (n, R) of whole tables do not depart from the others, as in `compare`."""
    kept = np.ones(values.shape[:2], dtype=bool)
    within_rows, n_seeds = values - values.mean(axis=2, keepdims=True), values.shape[2]
    open_tables = np.arange(len(values)) if values.shape[1] > 2 else np.array([], dtype=np.int64)
    while len(open_tables):
        here, own = kept[open_tables], within_rows[open_tables]
        k = here.sum(axis=1)
        of_seeds = (own * here[:, :, None]).sum(axis=1) / k[:, None]
        squares = (((own - of_seeds[:, None]) * here[:, :, None]) ** 2).sum(axis=2)
        lost = squares * (k / (k - 1))[:, None]
        df, rest = n_seeds - 1, np.maximum((k - 2) * (n_seeds - 1), 1)[:, None]
        others = np.where(here & (k > 2)[:, None], squares.sum(axis=1, keepdims=True) - lost, 1.0)
        chances = np.where(here, special.fdtrc(df, rest, lost / df / (others / rest)), 1.0)
        departs = (k > 2) & (k * chances.min(axis=1) < DEPARTURE_LEVEL)
        open_tables = open_tables[departs]
        kept[open_tables, chances[departs].argmin(axis=1)] = False
    return kept


def _judge_one(values: Floats, trained_by: Mapping[str, str] | None = None) -> Judged:
    """Judge one table (R, S), NaN where a run is missing."""
    rows = {
        str(row): {seed: value for seed, value in enumerate(of_row) if not math.isnan(value)}
        for row, of_row in enumerate(values.tolist())
    }
    judged = Judged.empty(1, len(values) - 1)
    for at, each in enumerate(compare(rows, trained_by=trained_by).differences.values()):
        if each.estimate is not None and each.single and each.simultaneous:
            judged.estimates[0, at] = each.estimate
            judged.half_widths[0, at] = each.simultaneous.high - each.estimate
            judged.single_half_widths[0, at] = each.single.high - each.estimate
            judged.is_apart[0, at] = each.method == "paired"
    return judged


def _arrays(judged: Judged) -> tuple[NDArray[np.generic], ...]:
    return judged.estimates, judged.half_widths, judged.single_half_widths, judged.is_apart


def paired_intervals(values: Floats) -> tuple[Floats, Floats]:
    """Return means and half widths (n, K) of paired differences, over the seeds that both have."""
    known = np.where(np.isfinite(values), values, math.nan)
    pairs = known[:, 1:] - known[:, :1]
    n = np.isfinite(pairs).sum(axis=2)
    centre = np.nansum(pairs, axis=2) / np.maximum(n, 1)
    squares = np.nansum((pairs - centre[..., None]) ** 2, axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = stats.t.isf(0.025, np.maximum(n - 1, 1)) * np.sqrt(squares / (n - 1) / n)
    return centre, np.where(n > 1, half, math.nan)


def _printed(rates: Rates) -> Rates:
    setting = rates.setting
    say(f"{setting.name:36}{setting.variants:5}{setting.seeds:6}{rates.wrong:8.2%}", end="")
    say(f"{rates.wrong_error:7.2%}{rates.wrong_paired:8.1%}{rates.single:9.2%}", end="")
    verdict = "" if setting.most is None else "  as promised" if rates.holds else "  MISSED"
    say(f"{rates.half_width:7.2f}{rates.half_width_paired:8.2f}{rates.apart:8.2%}{verdict}")
    return rates


def _power(setting: Setting, n: int) -> dict[str, float]:
    """Return the power for the row that differs, of the table and of paired t tests with Holm."""
    rng = np.random.default_rng([setting.variants, setting.seeds])
    n_significant = n_holm = 0
    for values in chunks(setting, rng, n):
        judged = judge(values)
        n_significant += int((judged.estimates > judged.half_widths)[:, 0].sum())
        n_holm += int(_holm(values)[:, 0].sum())
    power, holm = n_significant / n, n_holm / n
    say(f"{'':36}{setting.variants:5}{setting.seeds:6}{power:8.1%}{holm:16.1%}")
    errors = {"power_error": _error(power, n), "holm_error": _error(holm, n)}
    content = {"variants": setting.variants, "seeds": setting.seeds, "n_simulations": n}
    return {**content, "power": power, "holm": holm, **errors}


def _adding(variants: int, n: int) -> dict[str, float]:
    """Return how often a table is wrong if seeds are added until a difference is significant."""
    rng, n_wrong = np.random.default_rng(variants), 0
    setting = Setting("equal spreads", variants, MOST_ADDED)
    for values in chunks(setting, rng, n):
        is_wrong = np.zeros(len(values), dtype=bool)
        for n_seeds in range(FEWEST_ADDED, MOST_ADDED + 1):
            judged = judge(values[:, :, :n_seeds])
            is_wrong |= (np.abs(judged.estimates) > judged.half_widths).any(axis=1)
        n_wrong += int(is_wrong.sum())
    rate, name = n_wrong / n, f"{FEWEST_ADDED} to {MOST_ADDED} seeds"
    say(f"{name:36}{variants:5}{rate:14.2%}{_error(rate, n):7.2%}")
    return {"variants": variants, "n_simulations": n, "wrong": rate, "wrong_error": _error(rate, n)}


def _holm(values: Floats) -> NDArray[np.bool_]:
    """Return which rows (n, K) paired t tests with Holm's correction call different."""
    centre, half = paired_intervals(values)
    df = values.shape[2] - 1
    p = 2 * stats.t.sf(np.abs(centre) / half * single_value(df), df)
    order = np.argsort(p, axis=1)
    allowed = 0.05 / np.arange(p.shape[1], 0, -1)
    rejected = np.logical_and.accumulate(np.take_along_axis(p, order, axis=1) <= allowed, axis=1)
    ordered = np.empty_like(rejected)
    np.put_along_axis(ordered, order, rejected, axis=1)
    return ordered


def _error(rate: float, n: int) -> float:
    """Return the Monte Carlo error of a rate."""
    return math.sqrt(rate * (1 - rate) / n)


if __name__ == "__main__":
    sys.exit(main())
