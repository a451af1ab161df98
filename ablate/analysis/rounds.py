"""Speeds that were measured by turns: each row once in every round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


def rounds_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Rounds]:
    """Return the speeds of a row by name, ``speed.<name>``, of its latest session."""
    known = [record["speed"] for record in records if record.get("speed", {}).get("rounds")]
    if not known:
        return {}
    latest = max(known, key=lambda speed: speed["session"])
    return {
        f"speed.{name}": Rounds(values, latest["session"])
        for name, values in latest["rounds"].items()
    }
