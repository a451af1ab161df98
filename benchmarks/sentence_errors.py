"""How often do the intervals for new seeds and new test sentences hold?

    python benchmarks/sentence_errors.py [--n 20000] [--output FILE]

Each simulation is a table of a baseline and 4 rows that do not differ from it, judged by the
functions that `ablate report` calls. A difference has a standard deviation over seeds of 2 BLEU, of
which 1.6 are the draw of the sentences, as measured in results/pe_500; a part of these is the same
for all seeds. Ends with 1 if the intervals of all rows hold together in less than 92.5% of tables.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from records import RESULTS, origin, say, write

from ablate.analysis.comparison import compare
from ablate.analysis.sentences import crossed_error
from ablate.analysis.statistics import Interval

N_ROWS, N_SENTENCES = 4, 500
OF_DIFFERENCE, OF_SENTENCES = 2.0, 1.6  # standard deviations of a difference, in BLEU
LEAST_COVERAGE = 0.925


def main() -> int:
    """Simulate every setting, print and write the rates; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=20_000, help="tables of each setting")
    parser.add_argument("--output", type=Path, default=RESULTS / "sentence_errors.json")
    options = parser.parse_args()
    rates = []
    for shared in (0.0, 0.5, 1.0):
        for n_seeds in (3, 5, 10):
            held = coverage(n_seeds, shared, options.n)
            error = math.sqrt(held * (1 - held) / options.n)
            say(f"all seeds share {shared} BLEU, {n_seeds:2} seeds: {held:.2%} ± {error:.2%}")
            setting = {"seeds": n_seeds, "shared": shared, "n_simulations": options.n}
            rates.append({**setting, "held": held, "error": error})
    write(options.output, {**origin("cpu"), "rates": rates})
    return int(any(rate["held"] < LEAST_COVERAGE for rate in rates))


def coverage(n_seeds: int, shared: float, n: int) -> float:
    """Return the share of ``n`` tables in which the intervals of all rows hold.

    Args:
        n_seeds: of each row.
        shared: standard deviation of a difference that all seeds owe to the sentences, in BLEU.
        n: tables.
    """
    rng = np.random.default_rng([n_seeds, round(10 * shared)])
    n_held = 0
    for _ in range(n):
        of_rows = intervals(draw(rng, n_seeds, shared))
        n_held += all(interval.low <= 0 <= interval.high for interval in of_rows)
    return n_held / n


def draw(rng: np.random.Generator, n_seeds: int, shared: float) -> NDArray[np.float32]:
    """Return what each sentence adds to the score of each run, (R, S, I)."""
    of_row, of_run = (  # of each of two rows, so that their difference has twice the variance
        math.sqrt(variance * N_SENTENCES / 2)
        for variance in (shared**2, OF_SENTENCES**2 - shared**2)
    )
    n_rows = N_ROWS + 1
    scores = of_run * rng.standard_normal((n_rows, n_seeds, N_SENTENCES), dtype=np.float32)
    scores += of_row * rng.standard_normal((n_rows, 1, N_SENTENCES), dtype=np.float32)
    of_seed = math.sqrt((OF_DIFFERENCE**2 - OF_SENTENCES**2) / 2)
    return scores + of_seed * rng.standard_normal((n_rows, n_seeds, 1), dtype=np.float32)


def intervals(scores: NDArray[np.float32]) -> list[Interval]:
    """Return the interval for new sentences of each row; the score of a run is the mean of its."""
    means = scores.mean(axis=2, dtype=np.float64)  # (R, S)
    compared = compare({str(row): dict(enumerate(of)) for row, of in enumerate(means.tolist())})
    result = []
    for row, each in compared.differences.items():
        assert each.estimate is not None
        assert each.standard_error is not None
        assert each.df is not None
        paired = scores[int(row)] - scores[0]  # the influences, but for a constant of each seed
        error, df = crossed_error(each.standard_error, each.df, paired)
        result.append(Interval.around(each.estimate, compared.family.critical_of(df) * error))
    return result


if __name__ == "__main__":
    sys.exit(main())
