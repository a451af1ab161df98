"""Do intervals over contexts hold as often as they say?

    python benchmarks/contexts.py [--n 5000] [--looks] [--output FILE]

Each simulation is an experiment with a baseline and 4 rows, 5 seeds and 2 to 6 contexts. A row's
true difference in a context is drawn around its mean; every run owes its value to row, seed and an
error, whose size depends on the context where spreads are unequal, and on the row. An interval
fails if that of any row does. The trend is that of the true differences of these contexts.

With ``--looks``, contexts are alike, rows differ by the same in all of them, and each context's
looks say how many seeds a row gets.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from records import RESULTS, origin, say, write

from ablate.analysis.comparison import Difference, Promise, compare
from ablate.analysis.contexts import over_contexts
from ablate.analysis.measures import Verdict, verdict
from ablate.analysis.sequential import levels
from ablate.analysis.statistics import Interval

N_ROWS, N_SEEDS = 4, 5
UNEQUAL = (1.0, 0.3, 2.0, 0.5, 1.5, 0.7)  # of the errors of contexts
LOOKS, BAND = (3, 5, 8, 12), 0.6  # seeds; of what is negligible, in errors of a run
SPREAD = 0.3  # of the logarithms of the rows' spreads, where they are unequal


@dataclass(frozen=True)
class Line:
    """One kind of experiment, and how often its intervals hold for all rows together."""

    contexts: int
    tau: float  # standard deviation of a row's true difference over contexts, in errors of a run
    unequal: bool
    mean: float = 0.0
    prediction: float | None = None
    trend: float = 0.0
    here: float | None = None  # of new seeds, at looks
    delta: float = 0.0  # true difference at looks, in errors of a run
    error: float = 0.0  # Monte Carlo standard error of each, at 95%


def simulated(line: Line, n: int, seed: int) -> Line:
    """Return a line with the shares of ``n`` experiments in which all intervals hold."""
    draw, held = np.random.default_rng(seed), np.zeros(3)
    size = line.contexts
    errors = UNEQUAL[:size] if line.unequal else (1.0,) * size
    names = ["baseline", *map(str, range(N_ROWS))]
    x = np.arange(size) - (size - 1) / 2
    for _ in range(n):
        true = draw.normal(0, line.tau, (N_ROWS, size + 1))
        spreads = np.exp(draw.normal(0, SPREAD * line.unequal, N_ROWS + 1))
        compared = []
        for context, error in enumerate(errors):
            values = draw.normal(0, 1, (1, N_SEEDS)) + np.r_[0, true[:, context]][:, None]
            values = values + draw.normal(0, error, (N_ROWS + 1, N_SEEDS)) * spreads[:, None]
            rows = {r: dict(enumerate(map(float, v))) for r, v in zip(names, values, strict=True)}
            compared.append(compare(rows).differences)
        misses = np.zeros(3)
        for row in range(N_ROWS):
            over = over_contexts(
                [each[names[row + 1]] for each in compared], N_ROWS, [2.0**k for k in range(size)]
            )
            assert over is not None
            assert over.trend is not None
            at = 0.0 if size > 2 else float(true[row, :size].mean())
            slope = float(x @ true[row, :size] / (x @ x))
            new = over.prediction or Interval(-math.inf, math.inf)
            for k, (value, interval) in enumerate(
                ((at, over.interval), (true[row, size], new), (slope, over.trend.interval))
            ):
                misses[k] += interval is None or not interval.low <= value <= interval.high
        held += misses == 0
    mean, prediction, trend = (held / n).tolist()
    known = prediction if size > 2 else None
    error = math.sqrt(0.95 * 0.05 / n)
    return replace(line, mean=mean, prediction=known, trend=trend, error=error)


def simulated_looks(line: Line, n: int, seed: int) -> Line:
    """Return a line with the shares of ``n`` experiments with looks in which all intervals hold."""
    draw, held = np.random.default_rng(seed), np.zeros(4)
    rows, sizes = [str(row) for row in range(N_ROWS)], [2.0**k for k in range(line.contexts)]
    for _ in range(n):
        contexts, hold = [_at_looks(draw, rows, line.delta) for _ in sizes], np.ones(4, bool)
        for row in rows:
            differences = [each[row] for each in contexts]
            over = over_contexts(differences, N_ROWS, sizes, has_looks=True)
            assert over is not None
            assert over.trend is not None
            known = (
                (over.interval, line.delta),
                (over.prediction, line.delta),
                (over.trend.interval, 0.0),
                (over.here, line.delta),
            )
            for k, (interval, true) in enumerate(known):
                hold[k] &= interval is None or interval.low <= true <= interval.high
        held += hold
    mean, prediction, trend, here = (held / n).tolist()
    shown = prediction if line.contexts > 2 else None
    error = math.sqrt(0.95 * 0.05 / n)
    return replace(line, mean=mean, prediction=shown, trend=trend, here=here, error=error)


def _at_looks(
    draw: np.random.Generator, rows: Sequence[str], delta: float
) -> dict[str, Difference]:
    """Return the differences of a context as they were when each row was decided."""
    values = draw.normal(0, 1, (N_ROWS + 1, LOOKS[-1]))
    values[1:] += delta
    by_row = dict(zip(["baseline", *rows], values, strict=True))
    known: dict[str, Difference] = {}
    open_rows = list(rows)
    for n, level in zip(LOOKS, levels(LOOKS, N_ROWS), strict=True):
        table = {row: dict(enumerate(by_row[row][:n].tolist())) for row in ("baseline", *open_rows)}
        promise = Promise(level, n_closed=N_ROWS - len(open_rows))
        known |= compare(table, promise=promise).differences
        open_rows = [
            row
            for row in open_rows
            if verdict(known[row].simultaneous, BAND) is Verdict.CANNOT_TELL
        ]
        if not open_rows:
            break
    return known


def settings_of_looks() -> Iterator[Line]:
    """Yield every kind of experiment with looks."""
    for size, delta in product((2, 3, 4, 6), (0.0, 0.5, 1.0, 1.5)):
        yield Line(size, 0.0, unequal=False, delta=delta)


def settings() -> Iterator[Line]:
    """Yield every kind of experiment."""
    for size, tau, unequal in product(range(2, 7), (0.0, 0.5, 2.0), (False, True)):
        yield Line(size, tau, unequal)


def main() -> None:
    """Simulate all kinds, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=5000, help="experiments of each kind")
    parser.add_argument("--looks", action="store_true", help="experiments with looks")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines, kinds = [], list(settings_of_looks() if options.looks else settings())
    run = simulated_looks if options.looks else simulated
    output = options.output or RESULTS / f"contexts{'_looks' * options.looks}.json"
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seeds = range(len(kinds))
        for line in pool.map(run, kinds, [options.n] * len(kinds), seeds):
            lines.append(line)
            say(f"{line}")
    write(output, {"origin": origin("cpu"), "n": options.n, "lines": [*map(asdict, lines)]})


if __name__ == "__main__":
    main()
