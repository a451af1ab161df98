"""What a plan says: its rows and runs, what they cost, and what stands below the table."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ablate.runner.display import format_duration

_WEIGHT_BYTES = 4  # on disk


@dataclass(frozen=True)
class PlannedRun:
    """One run; ``hash`` is None while the content of its corpus is unknown."""

    seed: int
    hash: str | None
    is_done: bool


@dataclass(frozen=True)
class PlannedRow:
    """One row, as far as it is known before training.

    Attributes:
        changes: dotted path to new value.
        params: counted.
        params_delta: share of the baseline's parameters that it has more.
        is_vocabulary_known: whether they are counted with the vocabulary that the tokenizer has
            found, as a probe or a run tells, or with the size that it aims at.
        flops_per_target_token: of a training step, counted on a nominal batch.
        train_peak_mib: from the row's probe; None until it has been probed.
        seconds_per_run: of training, at the speed of the row's probe; until that is known, at
            another row's, by the ratio of their FLOPs; None until any row has been probed.
        is_time_estimated: whether it is by another row's speed.
        devices_per_run: devices that train a run together.
        published: what others have printed of the row: name of the measure to value.
        chosen: paths whose value is matched or tuned, and which of the two.
        pending: paths whose value is still to be matched or tuned.
        tuning: the runs by which it is tuned.
    """

    name: str
    changes: dict[str, Any]
    params: int
    params_delta: float
    is_vocabulary_known: bool
    flops_per_target_token: float
    train_peak_mib: float | None
    seconds_per_run: float | None
    runs_at_once: int
    runs: tuple[PlannedRun, ...]
    published: dict[str, float]
    chosen: dict[str, str] = field(default_factory=dict)
    pending: tuple[str, ...] = ()
    tuning: tuple[PlannedRun, ...] = ()
    is_time_estimated: bool = False
    devices_per_run: int = 1

    @property
    def n_done(self) -> int:
        """Return how many runs are done."""
        return sum(run.is_done for run in self.runs)

    @property
    def n_missing(self) -> int:
        """Return how many runs are still to be done, those of tuning included."""
        return sum(not run.is_done for run in (*self.runs, *self.tuning))


@dataclass(frozen=True)
class Plan:
    """What ``ablate run`` would do.

    Attributes:
        published: whose numbers the rows' published ones are, and a note on how to compare them.
        stale: which finished runs other code, libraries or another machine have made.
    """

    experiment: str
    question: str | None
    device: str
    n_worker_slots: int
    rows: tuple[PlannedRow, ...]
    published: dict[str, str | None] | None
    stale: tuple[str, ...] = ()

    @property
    def n_missing(self) -> int:
        """Return how many runs are still to be done."""
        return sum(row.n_missing for row in self.rows)

    @property
    def seconds_left(self) -> float | None:
        """Return how long the missing runs would train; None until some row has been probed.

        The longest first, each on the devices that are free first, and as long as it would alone:
        where runs share a GPU, or free cores help, it takes less.
        """
        missing = _known([row.seconds_per_run for row in self.rows for _ in range(row.n_missing)])
        if missing is None:
            return None
        busy_for = [0.0] * (self.n_worker_slots // self._n_devices)
        for seconds in sorted(missing, reverse=True):
            heapq.heapreplace(busy_for, busy_for[0] + seconds)
        return max(busy_for)

    @property
    def device_seconds(self) -> float | None:
        """Return how long all runs train on one device; None until some row has been probed."""
        runs = _known([r.seconds_per_run for r in self.rows for _ in (*r.runs, *r.tuning)])
        return None if runs is None else sum(runs) * self._n_devices

    @property
    def weight_mib(self) -> float:
        """Return how much of the disk the weights of all runs take, in MiB."""
        return sum(
            row.params * (len(row.runs) + len(row.tuning)) * _WEIGHT_BYTES / 2**20
            for row in self.rows
        )

    @property
    def _n_devices(self) -> int:
        """How many devices train a run together, of all rows."""
        return max((row.devices_per_run for row in self.rows), default=1)

    def remarks(self) -> list[str]:
        """Return what stands below the table of rows."""
        n_tuning = sum(len(row.tuning) for row in self.rows)
        n_runs = sum(len(row.runs) for row in self.rows) + n_tuning
        left = self.seconds_left
        n_sharing = max((row.runs_at_once for row in self.rows), default=1)
        lines = [
            f"{n_runs - self.n_missing} of {n_runs} runs are done, {self.n_missing} are missing; "
            f"{self.n_worker_slots // self._n_devices * n_sharing} at a time on {self.device}"
        ]
        if n_tuning:
            n_done = sum(run.is_done for row in self.rows for run in row.tuning)
            lines.append(f"{n_tuning} of the runs tune the rows on dev; {n_done} of them are done")
        if self.n_missing and left is not None:
            about = "about" if n_sharing == 1 else "at most"
            lines.append(f"{about} {format_duration(left)} of training are left")
        lines.append(self._total())
        if any(row.is_time_estimated for row in self.rows):
            lines.append("~ before a time: at the speed of another row, by the ratio of FLOPs")
        if any(row.train_peak_mib is None for row in self.rows):
            lines.append("memory and time are unknown until the first `ablate run` has probed them")
        if not all(row.is_vocabulary_known for row in self.rows):
            lines.append(
                "~ before a number: for a vocabulary of the size that the tokenizer aims at"
            )
        lines += self.stale
        for label, text in (self.published or {}).items():
            lines += [f"published, {label}: {text}"] if text else []
        return lines

    def _total(self) -> str:
        """Return what all runs take, those that are done included."""
        seconds, device = self.device_seconds, re.split("[: ]", self.device)[0]
        hours = "" if seconds is None else f"{seconds / 3600:.3g} {device} hours, "
        return f"all runs together: {hours}{self.weight_mib:,.0f} MiB of disk for weights"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        totals = ("n_missing", "seconds_left", "device_seconds", "weight_mib")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}


def _known(times: Sequence[float | None]) -> list[float] | None:
    """Return times; None if one of them is not known."""
    known = [seconds for seconds in times if seconds is not None]
    return known if len(known) == len(times) else None
