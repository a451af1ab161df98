"""Speeds that were measured by turns: each row once in every round of a session."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.record import speed_sessions


@dataclass(frozen=True)
class Rounds:
    """One measure of a row, round by round.

    A machine is now faster and now slower, so that one row is compared with another within a
    round, and only on the same session.

    Attributes:
        values: of each round, never empty.
        session: when the rows began to take turns.
    """

    values: Sequence[float]
    session: str

    @property
    def n(self) -> int:
        """How many rounds."""
        return len(self.values)

    @property
    def median(self) -> float:
        """The median, which one disturbed round does not move."""
        return statistics.median(self.values)

    @property
    def sd(self) -> float | None:
        """The sample standard deviation (n - 1), which it does; None for one round."""
        return statistics.stdev(self.values) if self.n > 1 else None


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


def comparable(rows: Mapping[str, Mapping[str, Rounds]], baseline: str) -> list[dict[str, Rounds]]:
    """Return the sessions in which rows are compared, the one with most rows last.

    Each row is compared in its latest session with the baseline, and left out if it has none; the
    baseline is in all of them, and first.

    Args:
        rows: by name and session, the earliest first.
        baseline: a name, of a row that need not be there.
    """
    theirs = rows.get(baseline, {})
    sessions: dict[str, dict[str, Rounds]] = {}
    for name, of_row in rows.items():
        shared = [session for session in of_row if session in theirs]
        if shared and name != baseline:
            latest = shared[-1]
            sessions.setdefault(latest, {baseline: theirs[latest]})[name] = of_row[latest]
    return sorted(sessions.values(), key=len)
