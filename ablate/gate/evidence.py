"""The measurements of a gate's runs, for its checks."""

from __future__ import annotations

import csv
import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from statistics import fmean

from ablate.analysis.statistics import Estimate
from ablate.analysis.summary import Record, Records, Summary, summarise
from ablate.errors import StoreError

LOSSES = "train_loss"  # the one measure that is read from the curve: losses of the first steps
MOST_STEPS = 100  # the most of them that a check can compare
_MOST_DECIMALS = 6
_MACHINE = ("device", "device_name", "cpu", "cpu_kind", "threads")


class UnfitError(Exception):
    """Runs cannot bless a check, or be judged by it; the message says why."""


@dataclass(frozen=True)
class Evidence:
    """The runs of a gate, by row and seed."""

    records: Records
    losses: Mapping[tuple[str, int], Sequence[float]]  # of the first steps, in nats per token
    repeats: Records = field(default_factory=dict)  # the same runs once more with other rounding

    def summary(self, row: str, seeds: Sequence[int], unfinished: Collection[int] = ()) -> Summary:
        """Return the summary of a row; refuse the first run that must be done and is not."""
        summary = summarise([row], seeds, self.records)[0]
        for seed, status in summary.outcomes.items():
            if status != "done" and seed not in unfinished:
                reason = summary.errors.get(seed)
                verb = {"oom": "ran out of memory", "missing": "is missing"}.get(status, status)
                raise UnfitError(f"{row} with seed {seed} {verb}{f': {reason}' if reason else ''}")
        return summary

    def values(self, row: str, measure: str, seeds: Sequence[int]) -> tuple[float, ...]:
        """Return a measure of every seed, in their order; refuse runs that are not done."""
        metric = measured(self.summary(row, seeds), measure)
        assert metric is not None, "every run has the measures of the checks"
        return tuple(metric.values[seed] for seed in seeds)


def values_so_far(
    records: Records, row: str, measure: str, seeds: Sequence[int]
) -> dict[int, float]:
    """Return a measure of the runs that are done, by seed."""
    metric = measured(summarise([row], seeds, records)[0], measure)
    return dict(metric.values) if metric else {}


def measured(summary: Summary, measure: str) -> Estimate | None:
    """Return a measure of a row; with a ``*``, in each run the mean of all measures that it names.

    As in ``test.*.bleu``: over the test sets. None if no run has any.
    """
    by_name = [summary.metrics[name].values for name in named(measure, summary.metrics)]
    if not by_name:
        return None
    seeds = [seed for seed in by_name[0] if all(seed in values for values in by_name)]
    return Estimate({seed: fmean(values[seed] for values in by_name) for seed in seeds})


def named(measure: str, measures: Iterable[str]) -> list[str]:
    """Return those of ``measures`` that a check's measure names."""
    if "*" in measure:
        return fnmatch.filter(measures, measure)
    return [each for each in measures if each == measure]


def machine(record: Record) -> dict[str, int | float | str]:
    """Return the kind of machine; machines of one kind compute a run bit for bit alike."""
    hardware, versions = record.get("hardware", {}), record.get("versions", {})
    facts = {key: hardware.get(key) for key in _MACHINE}
    facts["torch"] = versions.get("torch")
    return {key: value for key, value in facts.items() if value is not None}


def difference(ours: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    """Write where two kinds of machine differ: ``torch 2.14, not 2.13``."""
    keys: dict[str, str] = {}  # by the values; of several keys with the same values the first
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            keys.setdefault(f"{ours.get(key)}, not {theirs.get(key)}", key)
    return "; ".join(f"{key} {values}" for values, key in keys.items())


def first_losses(curve: Path) -> list[float]:
    """Return the losses of the steps up to the first without a line; NaN where one diverged."""
    if not curve.exists():
        return []
    try:
        with curve.open(encoding="utf-8", newline="") as file:
            lines = list(islice(csv.DictReader(file), MOST_STEPS))
        by_step = takewhile(lambda pair: int(pair[1]["step"]) == pair[0], enumerate(lines, start=1))
        return [float(line[LOSSES] or "nan") for _, line in by_step]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise StoreError(
            f"{curve}: is damaged; `ablate run --fresh` makes the run again"
        ) from error


def to_scale(value: float, scale: float, sign: str = "") -> str:
    """Write a number with the decimals of a comparison at this scale; 0 if both must be equal."""
    if scale == 0:
        return f"{value:{sign}.10g}"
    decimals = _MOST_DECIMALS
    if math.isfinite(scale):  # three digits of a number of this size
        decimals = max(0, min(decimals, 2 - math.floor(math.log10(abs(scale)))))
    return f"{value:{sign}.{decimals}f}"


def percentage(share: float) -> str:
    """Write a share with two digits: 0.001 is ``0.1%``, 0.00003 is ``0.003%``."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.4g}%"
