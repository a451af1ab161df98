"""What the runs of a gate measured, as its checks ask for it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path

from ablate.analysis.summary import Record, Records, Summary, summarise

LOSSES = "train_loss"
"""The measure that is not in the record but in the curve: the loss of each of the first steps."""

MOST_STEPS = 100
"""How many of the first losses a check can ask for."""

_MACHINE = ("device", "device_name", "cpu", "cpu_kind", "threads")


class UnfitError(Exception):
    """Runs cannot bless a check, or be judged by it; the message says why."""


@dataclass(frozen=True)
class Evidence:
    """The runs of a gate.

    Attributes:
        records: by row and seed.
        losses: by row and seed, the training loss of the first steps, in nats per token.
        repeats: by row and seed, the same runs once more with other rounding, while blessing.
    """

    records: Records
    losses: Mapping[tuple[str, int], Sequence[float]]
    repeats: Records = field(default_factory=dict)

    def summary(
        self, row: str, seeds: Sequence[int], allowed: Callable[[int], bool] = lambda _: False
    ) -> Summary:
        """Return what is known of a row over ``seeds``.

        Args:
            row: its name.
            seeds: of the runs.
            allowed: which of them need not be done.

        Raises:
            UnfitError: with the reason of the first run that is not done.
        """
        summary = summarise([row], seeds, self.records)[0]
        for seed, status in summary.outcomes.items():
            if status != "done" and not allowed(seed):
                reason = summary.errors.get(seed)
                word = {"oom": "ran out of memory", "missing": "is missing"}.get(status, status)
                raise UnfitError(f"{row} with seed {seed} {word}{f': {reason}' if reason else ''}")
        return summary

    def values(self, row: str, measure: str, seeds: Sequence[int]) -> tuple[float, ...]:
        """Return a measure of every seed, in their order.

        Raises:
            UnfitError: if a run is not done.
        """
        known = self.summary(row, seeds).metrics[measure].values
        return tuple(known[seed] for seed in seeds)


def so_far(records: Records, row: str, measure: str, seeds: Sequence[int]) -> dict[int, float]:
    """Return a measure by seed, of the runs that are done."""
    known = summarise([row], seeds, records)[0].metrics.get(measure)
    return dict(known.values) if known else {}


def machine(record: Record) -> dict[str, int | float | str]:
    """Return the kind of machine: where it is the same, the same run gives the same bits."""
    hardware, versions = record.get("hardware", {}), record.get("versions", {})
    known = {key: hardware.get(key) for key in _MACHINE}
    known["torch"] = versions.get("torch")
    return {key: value for key, value in known.items() if value is not None}


def difference(ours: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    """Write where two kinds of machine differ: ``torch 2.14, not 2.13``."""
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    first: dict[str, str] = {}  # several keys may differ in the same way
    for key in keys:
        first.setdefault(f"{ours.get(key)}, not {theirs.get(key)}", key)
    return "; ".join(f"{key} {values}" for values, key in first.items())


def first_losses(curve: Path) -> list[float]:
    """Return the losses of the first steps, as long as each has a line of its own."""
    if not curve.exists():
        return []
    with curve.open(encoding="utf-8", newline="") as file:
        lines = list(islice(csv.DictReader(file), MOST_STEPS))
    by_step = takewhile(lambda pair: int(pair[1]["step"]) == pair[0], enumerate(lines, start=1))
    return [float(line[LOSSES]) for _, line in by_step]
