"""Speeds of rows that took turns, each once in every round of a session.

A machine is now faster and now slower, for all rows alike within a round: log speed = row + round +
noise. Rows are compared only within a session. Median polish (Tukey 1977, "Exploratory Data
Analysis", ch. 11) takes the rounds out and leaves one speed for each row, which one disturbed
measurement does not move. The ratio of rows is the quotient of their speeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.analysis.statistics import Interval
from ablate.record import speed_sessions

Floats = NDArray[np.float64]

_MOST_SWEEPS = 100
_SETTLED = 1e-10


@dataclass(frozen=True)
class Rounds:
    """One measure of a row, round by round; the session is when the rows began to take turns."""

    values: Sequence[float]
    session: str

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def sd(self) -> float | None:
        """The sample standard deviation (n - 1); None for one round."""
        return statistics.stdev(self.values) if self.n > 1 else None


@dataclass(frozen=True)
class Speed:
    """One row's speed in a typical round of ``n``, and its ratio to the baseline's."""

    value: float
    n: int
    ratio: float | None = None  # None for the baseline
    interval: Interval | None = None  # Student's, of the logarithms of the rounds' own ratios


def rounds_of(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Rounds]]:
    """Return the speeds of a row by name, ``speed.<name>``, and session, the earliest first."""
    by_session: dict[str, Mapping[str, list[float]]] = {}
    for record in records:
        by_session |= speed_sessions(record.get("speed"))
    names = dict.fromkeys(name for rounds in by_session.values() for name in rounds)
    return {
        f"speed.{name}": {
            session: Rounds(rounds[name], session)
            for session, rounds in sorted(by_session.items())
            if rounds.get(name)
        }
        for name in names
    }


def compare_speeds(rounds: Mapping[str, Sequence[float]]) -> dict[str, Speed]:
    """Return the speed of every row from its speeds by round, the baseline's first.

    A row that failed in a later round has fewer.
    """
    logs = np.full((len(rounds), max(map(len, rounds.values()))), math.nan)
    for row, values in zip(logs, rounds.values(), strict=True):
        row[: len(values)] = [math.log(value) for value in values]
    rows = median_polish(logs)
    names = list(rounds)
    speeds = {names[0]: Speed(math.exp(rows[0]), len(rounds[names[0]]))}
    for name, own, effect in zip(names[1:], logs[1:], rows[1:], strict=True):
        speeds[name] = Speed(
            value=math.exp(effect),
            n=len(rounds[name]),
            ratio=math.exp(effect - rows[0]),
            interval=_interval(own - logs[0]),
        )
    return speeds


def median_polish(values: Floats) -> Floats:
    """Return the effects (rows,) of an additive table, with that of the middle round added.

    The values (rows, rounds) are NaN where one is missing; no row is without a value.
    """
    rest = values.copy()
    rows, rounds = np.zeros(values.shape[0]), np.zeros(values.shape[1])
    for _ in range(_MOST_SWEEPS):
        of_rounds = np.nanmedian(rest, axis=0)
        rounds += of_rounds
        rest -= of_rounds
        of_rows = np.nanmedian(rest, axis=1)
        rows += of_rows
        rest -= of_rows[:, None]
        if np.abs(of_rows).max() < _SETTLED and np.abs(of_rounds).max() < _SETTLED:
            break
    return rows + np.median(rounds)


def _interval(differences: Floats) -> Interval | None:
    """Return the interval of a ratio from the differences of logarithms, round by round."""
    known = differences[np.isfinite(differences)]
    if len(known) < 2:
        return None
    of_logs = Interval.of_mean(float(known.mean()), float(known.std(ddof=1)), len(known))
    return Interval(math.exp(of_logs.low), math.exp(of_logs.high))
