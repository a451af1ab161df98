"""What the runs of a gate have come to, as its checks ask for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.analysis.reference import LOSSES, Exact, Finding, Scalar
from ablate.analysis.statistics import Estimate, Interval, paired
from ablate.analysis.summary import Record, Records, Summary, summarise
from ablate.analysis.tolerance import quantile, tail


@dataclass(frozen=True)
class Evidence:
    """The runs of a gate.

    Attributes:
        records: by row and seed.
        losses: by row and seed, the training loss of the first steps, in nats per token.
    """

    records: Records
    losses: Mapping[tuple[str, int], Sequence[float]]

    def summary(self, row: str, seeds: Sequence[int]) -> Summary:
        """Return what is known of a row over ``seeds``."""
        return summarise([row], seeds, self.records)[0]

    def numbers(self, check: Exact, seed: int) -> list[float]:
        """Return what an exact check is about, as much of it as there is."""
        if check.measure == LOSSES:
            return list(self.losses.get((check.row, seed), ()))[: check.n_values]
        found = self.summary(check.row, [seed]).metrics.get(check.measure)
        return [found.values[seed]] if found else []


@dataclass(frozen=True)
class Effect:
    """The difference between two rows, and how far it is from what a finding claims.

    Attributes:
        differences: row less the row it is held against, by seed; None if no pair of runs is done.
        interval: of their mean, Student's; the finding must hold at both its ends. None if there
            is none.
        diverged: seeds that speak for the claim because the worse row diverged.
        shortfall: how much is missing, in the units of the measure; infinite if nothing is known.
    """

    differences: Estimate | None
    interval: Interval | None
    diverged: tuple[int, ...]
    shortfall: float

    def holds(self, check: Finding) -> bool:
        """Return whether the claim is shown; an effect of at least 0 is one that is above 0."""
        return self.shortfall < 0 or (self.shortfall == 0 and check.by > 0)


_KIND = ("device", "device_name", "cpu", "cpu_kind", "threads")


def machine(record: Record) -> dict[str, Scalar]:
    """Return the kind of machine: where it is the same, the same run gives the same bits."""
    hardware, versions = record.get("hardware", {}), record.get("versions", {})
    known = {key: hardware.get(key) for key in _KIND}
    known["torch"] = versions.get("torch")
    return {key: value for key, value in known.items() if value is not None}


def unfinished(summary: Summary, *, allowed: Sequence[int] = ()) -> str | None:
    """Return what went wrong with the first run that is not done, in words, if one is not."""
    for seed, status in summary.outcomes.items():
        if status != "done" and seed not in allowed:
            reason = summary.errors.get(seed)
            word = {"oom": "ran out of memory", "missing": "is missing"}.get(status, status)
            told = f": {reason}" if reason else ""
            return f"{summary.name} with seed {seed} {word}{told}"
    return None


def supporting(check: Finding, row: Summary, against: Summary) -> tuple[int, ...]:
    """Return the seeds with which the row that is claimed to be worse diverged."""
    if check.claim == "near":
        return ()
    worse, better = (row, against) if check.claim == "worse" else (against, row)
    return tuple(
        seed
        for seed, status in worse.outcomes.items()
        if status == "diverged" and better.outcomes.get(seed) == "done"
    )


def effect(check: Finding, row: Summary, against: Summary) -> Effect:
    """Return the effect between two rows over the seeds of both."""
    ours, theirs = row.metrics.get(check.measure), against.metrics.get(check.measure)
    differences = paired(ours, theirs) if ours and theirs else None
    return effect_of(check, differences, supporting(check, row, against))


def effect_of(check: Finding, differences: Estimate | None, diverged: tuple[int, ...]) -> Effect:
    """Return the effect that differences show, and runs of the worse row that diverged."""
    if differences is None:
        return Effect(None, None, diverged, -math.inf if diverged else math.inf)
    interval = _interval(check, differences)
    if interval is None:
        return Effect(differences, None, diverged, math.inf)
    if check.claim == "near":
        shortfall = max(abs(interval.low), abs(interval.high)) - check.by
    else:
        nearest = interval.low if _sign(check) > 0 else -interval.high
        shortfall = check.by - nearest
    return Effect(differences, interval, diverged, shortfall)


def repetition(check: Finding, differences: Estimate) -> float:
    """Return the share of gates that would show the claim again, were the effect just as seen.

    Of gates with as few seeds as the check allows. For ``near`` it is a lower bound.
    """
    assert differences.sd is not None, "only what has an interval was shown"
    if differences.sd == 0:
        return 1.0
    unit = differences.sd / math.sqrt(check.seeds)
    critical = quantile(1 - check.confidence, check.seeds - 1)

    def shown(room: float) -> float:
        return tail(critical, check.seeds - 1, room / unit)

    if check.claim == "near":
        both = shown(check.by - differences.mean) + shown(check.by + differences.mean)
        return max(0.0, both - 1)
    return shown(_sign(check) * differences.mean - check.by)


def _interval(check: Finding, differences: Estimate) -> Interval | None:
    """Return the interval each of whose ends is wrong in a share of 1 - confidence."""
    if differences.sd is None:
        return None
    critical = quantile(1 - check.confidence, differences.n - 1)
    half = critical * differences.sd / math.sqrt(differences.n)
    return Interval(differences.mean - half, differences.mean + half)


def _sign(check: Finding) -> int:
    """Return 1 if the claim is that the row's values are higher, else -1."""
    return 1 if (check.claim == "better") == check.is_higher_better else -1
