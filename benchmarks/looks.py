"""What do looks at 3, 5, 8, 12 (and 20) seeds save, and are they wrong as seldom as promised?

    python benchmarks/looks.py [--n 20000] [--large 2000] [--output FILE]

Each simulation is a whole experiment: rows that are decided or given up get no more seeds. A table
is wrong if a row that equals the baseline is called better or worse at any look; a "no difference"
is wrong if the true difference is at the edge of the band. The runs are compared with those of a
table of all seeds for all rows. The unit is the standard deviation of a run's error. The record is
added to: with a larger ``--n`` the experiments that it has are not simulated again.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from records import RESULTS, origin, say, write

from ablate.analysis import sequential
from ablate.analysis.comparison import Promise, compare
from ablate.analysis.measures import Verdict, verdict
from ablate.analysis.statistics import LEVEL

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

LOOKS, MORE = (3, 5, 8, 12), (3, 5, 8, 12, 20)
SPREAD = 0.41  # of the logarithms of the rows' spreads, as in table_errors.py
OF_SEEDS = 0.73  # standard deviation of what all rows owe to the seed
SD = 1.75  # of a run's error in the atlas, in BLEU
BAND = 0.6  # what is negligible
_CHUNK = 50  # experiments of a task
_LARGE = 100  # rows


@dataclass(frozen=True)
class Setting:
    """A distribution of experiments."""

    name: str
    rows: int
    spread: float = 0.0
    tails: bool = False  # Student's, with 5 degrees of freedom
    collapsing: bool = False  # the first row, with half of its seeds, by 8
    of_atlas: bool = False  # differences are drawn from those of the atlas's rows
    at_edge: bool = False  # every row differs by the band
    looks: tuple[int, ...] = LOOKS


@dataclass
class Outcome:
    """Sums over experiments."""

    n: int = 0
    wrong: int = 0  # with a false difference
    missed: int = 0  # with an interval, at any look, that leaves out the true difference
    false_none: int = 0  # with a "no difference" of a row that has one
    decided: int = 0  # rows
    given_up: int = 0  # rows
    decided_fixed: int = 0  # rows, in a table of all seeds
    runs: int = 0
    at_look: list[int] = field(default_factory=lambda: [0] * len(MORE))  # rows that were decided

    def add(self, other: Outcome) -> None:
        for name, value in asdict(other).items():
            own = getattr(self, name)
            joined = [a + b for a, b in zip(own, value, strict=True)] if name == "at_look" else None
            setattr(self, name, joined if joined is not None else own + value)


def settings() -> list[Setting]:
    """Return what is simulated."""
    result = []
    for rows in (4, 15, 110):
        result += [
            Setting("no effects", rows),
            Setting(f"spreads {SPREAD} apart", rows, spread=SPREAD),
            Setting("heavy tails", rows, tails=True),
            Setting("a row that collapses", rows, collapsing=True),
            Setting("differences of the atlas", rows, of_atlas=True),
            Setting("likewise, to 20 seeds", rows, of_atlas=True, looks=MORE),
            Setting("all at the edge of the band", rows, at_edge=True),
            Setting("no effects, to 20 seeds", rows, looks=MORE),
            Setting(f"spreads {SPREAD} apart, to 20 seeds", rows, spread=SPREAD, looks=MORE),
        ]
    return result


@cache
def of_atlas() -> Floats:
    """Return the differences of the rows of the atlas, in standard deviations of an error."""
    with (RESULTS.parent / "atlas" / "differences.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "test.test.bleu"]
    return np.array([float(row["difference"]) for row in rows]) / SD


def simulate(setting: Setting, seed: int) -> Outcome:
    """Play some experiments."""
    rng, outcome = np.random.default_rng([seed, setting.rows]), Outcome()
    for _ in range(_CHUNK):
        effects = np.zeros(setting.rows)
        if setting.of_atlas:
            effects = rng.choice(of_atlas(), setting.rows)
        effects = np.full(setting.rows, BAND) if setting.at_edge else effects
        shape = (setting.rows + 1, setting.looks[-1])
        errors = rng.standard_t(5, shape) / math.sqrt(5 / 3) if setting.tails else None
        values = rng.standard_normal(shape) if errors is None else errors
        values *= np.exp(setting.spread * rng.standard_normal((shape[0], 1)))
        values += OF_SEEDS * rng.standard_normal(shape[1])
        values[1:] += effects[:, None]
        if setting.collapsing:
            values[1, rng.permutation(shape[1])[: shape[1] // 2]] -= 8
            effects[0] = math.nan  # it has no difference to be right about
        _play(values, effects, setting.looks, outcome)
    return outcome


def _play(values: Floats, effects: Floats, looks: tuple[int, ...], outcome: Outcome) -> None:
    undecided = list(range(1, len(values)))
    n_rows, errors = len(undecided), {"wrong": 0, "missed": 0, "false_none": 0}
    for at, (n, level) in enumerate(zip(looks, sequential.levels(looks, n_rows), strict=True)):
        outcome.runs += (n - (looks[at - 1] if at else 0)) * (1 + len(undecided))
        verdicts = _verdicts(values, [0, *undecided], n, level, n_rows - len(undecided))
        for row in list(undecided):
            known, low, high, estimate, error = verdicts[row]
            true = effects[row - 1]
            errors["missed"] |= not low <= true <= high and not math.isnan(true)
            if known is Verdict.CANNOT_TELL:
                if n < looks[-1]:
                    by_last = sequential.chance(estimate, error, looks, n, n_rows, BAND)
                    if by_last < sequential.GIVE_UP:
                        undecided.remove(row)
                        outcome.given_up += 1
                continue
            undecided.remove(row)
            outcome.decided += 1
            outcome.at_look[at] += 1
            errors["wrong"] |= known is not Verdict.NO_DIFFERENCE and true == 0
            errors["false_none"] |= known is Verdict.NO_DIFFERENCE and abs(true) >= BAND
        if not undecided:
            break
    fixed = _verdicts(values, list(range(len(values))), looks[-1], LEVEL, 0)
    outcome.decided_fixed += sum(known is not Verdict.CANNOT_TELL for known, *_ in fixed.values())
    outcome.n += 1
    for name, happened in errors.items():
        setattr(outcome, name, getattr(outcome, name) + int(happened))


def _verdicts(
    values: Floats, rows: list[int], n: int, level: float, n_closed: int
) -> dict[int, tuple[Verdict, float, float, float, float]]:
    table = {str(row): dict(enumerate(values[row, :n])) for row in rows}
    compared = compare(table, promise=Promise(level, n_closed=n_closed))
    result = {}
    for row, difference in compared.differences.items():
        interval = difference.simultaneous
        known = verdict(interval, BAND)
        assert interval is not None
        assert known is not None
        assert difference.estimate is not None
        assert difference.standard_error is not None
        ends = interval.low, interval.high
        result[int(row)] = known, *ends, difference.estimate, difference.standard_error
    return result


def main() -> None:
    """Simulate every setting, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=20_000, help="experiments of each setting")
    parser.add_argument("--large", type=int, default=2_000, help=f"of more than {_LARGE} rows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=RESULTS / "looks.json")
    chosen = parser.parse_args()
    known: dict[str, dict[str, Any]] = {}
    if chosen.output.exists():
        stored = json.loads(chosen.output.read_text(encoding="utf-8"))["settings"]
        known = {f"{line['name']}, {line['rows']}": line for line in stored}
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for setting in settings():
            key = f"{setting.name}, {setting.rows}"
            n = chosen.large if setting.rows > _LARGE else chosen.n
            total = _counted(known[key], setting) if key in known else Outcome()
            chunks = range(total.n // _CHUNK, n // _CHUNK)
            for part in pool.map(simulate, repeat(setting), chunks):
                total.add(part)
            n_rows, n_fixed = (
                total.n * setting.rows,
                total.n * (setting.rows + 1) * setting.looks[-1],
            )
            line = {
                **asdict(setting),
                "experiments": total.n,
                "wrong": total.wrong / total.n,
                "missed": total.missed / total.n,
                "false_none": total.false_none / total.n,
                "decided": total.decided / n_rows,
                "given_up": total.given_up / n_rows,
                "decided_by_all_seeds": total.decided_fixed / n_rows,
                "decided_at": [n / n_rows for n in total.at_look],
                "runs": total.runs / n_fixed,
            }
            error = math.sqrt(line["wrong"] * (1 - line["wrong"]) / total.n)
            say(
                f"{setting.rows:3} rows, {setting.name:28} wrong {line['wrong']:6.2%} ± {error:.2%}"
                f"  missed {line['missed']:6.2%}  wrongly none {line['false_none']:6.2%}  decided "
                f"{line['decided']:4.0%} (by all seeds {line['decided_by_all_seeds']:4.0%})  "
                f"runs {line['runs']:4.0%}"
            )
            known[key] = line
            lines = list(known.values())
            write(chosen.output, {"band": BAND, "settings": lines, **origin("cpu")})


def _counted(line: Mapping[str, Any], setting: Setting) -> Outcome:
    """Return the sums that a line of the record was made from."""
    n = line["experiments"]
    n_rows, n_fixed = n * setting.rows, n * (setting.rows + 1) * setting.looks[-1]
    return Outcome(
        n=n,
        **{name: round(line[name] * n) for name in ("wrong", "missed", "false_none")},
        decided=round(line["decided"] * n_rows),
        given_up=round(line["given_up"] * n_rows),
        decided_fixed=round(line["decided_by_all_seeds"] * n_rows),
        runs=round(line["runs"] * n_fixed),
        at_look=[round(share * n_rows) for share in line["decided_at"]],
    )


if __name__ == "__main__":
    main()
