"""What ``ablate run`` would do, and what that would cost, in numbers and in sentences."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ablate.analysis.power import MOST_SEEDS
from ablate.config import BASELINE
from ablate.wording import counted, format_duration, rounded

_WEIGHT_BYTES = 4  # on disk
_LARGE_TEXT, _SECONDS_PER_MIB = 20, 0.45  # MiB; benchmarks/large_corpus.py


@dataclass(frozen=True)
class PlannedRun:
    """One run; ``hash`` is None while the content of its corpus is unknown.

    One that differs from another in decoding alone takes its weights, if that is done or above it.
    """

    seed: int
    hash: str | None
    is_done: bool
    takes_weights: bool = False


@dataclass(frozen=True)
class PlannedRow:
    """One row, as far as it is known before training; None is unknown until rows are probed.

    If the vocabulary is not known, it is taken of the size that the tokenizer aims at. An estimated
    time is that of another row, by the ratio of their FLOPs.
    """

    name: str
    changes: dict[str, Any]  # dotted path to new value
    params: int
    params_delta: float  # relative to the baseline's
    is_vocabulary_known: bool
    flops_per_target_token: float  # of a training step, counted on a nominal batch
    train_peak_mib: float | None
    seconds_per_run: float | None  # of training, at the speed of the probe
    runs_at_once: int
    runs: tuple[PlannedRun, ...]
    published: dict[str, float]  # numbers that a paper prints for the row, by measure
    chosen: dict[str, str] = field(default_factory=dict)  # path to ``matched`` or ``tuned``
    pending: tuple[str, ...] = ()  # paths whose value is still to be matched or tuned
    tuning: tuple[PlannedRun, ...] = ()  # the runs by which it is tuned
    is_time_estimated: bool = False
    devices_per_run: int = 1  # that train a run together

    @property
    def n_runs(self) -> int:
        """How many runs the row has, those of tuning included."""
        return len(self.runs) + len(self.tuning)

    @property
    def n_done(self) -> int:
        """How many runs are done, without those of tuning."""
        return sum(run.is_done for run in self.runs)

    @property
    def n_missing(self) -> int:
        """How many runs are missing, those of tuning included."""
        return sum(not run.is_done for run in (*self.runs, *self.tuning))

    @property
    def n_trained(self) -> int:
        """How many runs are trained: all but those that take the weights of another row."""
        return sum(not run.takes_weights for run in (*self.runs, *self.tuning))

    @property
    def n_to_train(self) -> int:
        """How many of the missing runs are to be trained."""
        runs = (*self.runs, *self.tuning)
        return sum(not (run.is_done or run.takes_weights) for run in runs)


@dataclass(frozen=True)
class Power:
    """What the table can find, if rows spread as those do that have runs.

    Attributes:
        sd: of one run's error, in BLEU.
        df: its degrees of freedom.
        n_seeds: of each row; of looks, at the last.
        detectable: the true difference that is found with a probability of 80%.
        seeds_for: how many seeds find smaller ones, by their size; None if a thousand do not.
    """

    sd: float
    df: int
    n_seeds: int
    detectable: float
    seeds_for: Mapping[float, int | None]


@dataclass(frozen=True)
class Plan:
    """What ``ablate run`` would do."""

    experiment: str
    question: str | None
    device: str
    n_worker_slots: int  # that runs can occupy, each those of one machine
    rows: tuple[PlannedRow, ...]
    published: dict[str, str | None] | None  # the source of published numbers, and a note on them
    text_mib: float = 0.0  # of the user's own text, to be encoded before the first run, in MiB
    stale: tuple[str, ...] = ()  # runs of other code, libraries or another machine, in sentences
    cautions: tuple[str, ...] = ()  # what makes numbers mean little, in sentences
    looks: tuple[int, ...] = ()  # numbers of seeds after each of which rows are judged
    n_looks: int = 0  # that are complete
    decided: Mapping[str, int] = field(default_factory=dict)  # rows, after how many seeds
    given_up: Mapping[str, int] = field(default_factory=dict)  # others that get no more
    n_expected: float | None = None  # runs after those of the next look; None before the first
    power: Power | None = None  # None until rows have runs with two seeds

    @property
    def n_missing(self) -> int:
        """How many runs are missing."""
        return sum(row.n_missing for row in self.rows)

    @property
    def seconds_left(self) -> float | None:
        """How long the missing runs would train; None until some row has been probed.

        The longest run starts first, each on the device that is free first, and every run takes as
        long as alone: less time is needed if runs share a GPU.
        """
        busy_for = [0.0] * (self.n_worker_slots // self._n_devices)
        times = [(row.seconds_per_run, row.n_to_train) for row in self.rows]
        missing = [seconds for seconds, n in times if seconds is not None for _ in range(n)]
        if len(missing) < sum(n for _, n in times):
            return None
        for seconds in sorted(missing, reverse=True):
            heapq.heapreplace(busy_for, busy_for[0] + seconds)
        return max(busy_for)

    @property
    def device_seconds(self) -> float | None:
        """How long all runs train on one device; None until some row has been probed."""
        times = [(row.n_trained, row.seconds_per_run) for row in self.rows if row.n_trained]
        known = [n_runs * seconds for n_runs, seconds in times if seconds is not None]
        return sum(known) * self._n_devices if len(known) == len(times) else None

    @property
    def weight_mib(self) -> float:
        """What the weights of all runs take on disk, in MiB."""
        return sum(row.params * row.n_trained for row in self.rows) * _WEIGHT_BYTES / 2**20

    @property
    def _n_devices(self) -> int:
        return max((row.devices_per_run for row in self.rows), default=1)

    def remarks(self) -> list[str]:
        """Return what stands below the table of rows."""
        n_tuning = sum(len(row.tuning) for row in self.rows)
        n_runs, left = sum(row.n_runs for row in self.rows), self.seconds_left
        n_sharing = max((row.runs_at_once for row in self.rows), default=1)
        lines = [
            f"{n_runs - self.n_missing} of {n_runs} runs are done, {self.n_missing} are missing; "
            f"{self.n_worker_slots // self._n_devices * n_sharing} at a time on {self.device}"
        ]
        lines += self._of_looks() + self._of_power()
        if n_tuning:
            n_done = sum(run.is_done for row in self.rows for run in row.tuning)
            lines.append(f"{n_tuning} of the runs tune the rows on dev; {n_done} of them are done")
        if n_decoding := n_runs - sum(row.n_trained for row in self.rows):
            lines.append(
                f"{n_decoding} of the runs differ from another in decoding alone, take its weights "
                "and are not trained"
            )
        if self.n_missing and left is not None:
            about = "about" if n_sharing == 1 else "at most"
            lines.append(f"{about} {format_duration(left)} of training are left")
        device, spent = re.split("[: ]", self.device)[0], self.device_seconds
        hours = "" if spent is None else f"{rounded(spent / 3600, 3)} {device} hours, "
        lines.append(f"all runs together: {hours}{self.weight_mib:,.0f} MiB of disk for weights")
        if self.text_mib >= _LARGE_TEXT:
            duration = format_duration(self.text_mib * _SECONDS_PER_MIB)
            lines.append(
                f"{self.text_mib:,.0f} MiB of text are to be read and encoded first, which takes "
                f"about {duration} on two cores"
            )
        if any(row.is_time_estimated for row in self.rows):
            lines.append("~ before a time: at the speed of another row, by the ratio of FLOPs")
        if any(row.train_peak_mib is None for row in self.rows):
            lines.append("? for memory or time: unknown until `ablate run` has probed the row")
        if not all(row.is_vocabulary_known for row in self.rows):
            lines.append("~ before a number: for the vocabulary size that the tokenizer aims at")
        lines += [*self.stale, *self.cautions]
        published = (self.published or {}).items()
        return lines + [f"published, {label}: {text}" for label, text in published if text]

    def _of_looks(self) -> list[str]:
        if not self.looks:
            return []
        closed = {**self.decided, **self.given_up}
        n_rows = sum(row.name != BASELINE for row in self.rows)
        n_open, n_runs = n_rows - len(closed), sum(len(row.runs) for row in self.rows)
        n_most = sum(closed.values()) + (len(self.rows) - len(closed)) * self.looks[-1]
        come_to = f"{len(self.decided)} of {n_rows} rows"
        given_up = f", {len(self.given_up)} given up" if self.given_up else ""
        if not n_open or self.n_looks == len(self.looks):
            return [f"all looks are over: {come_to} decided{given_up}"]
        of = f"look {self.n_looks + 1} of {len(self.looks)}, at {self.looks[self.n_looks]} seeds"
        expected = "" if self.n_expected is None else f" ({self.n_expected:.0f} are to be expected)"
        return [
            f"these are the runs up to {of}: {come_to} are decided{given_up}; at most "
            f"{n_most - n_runs} runs follow{expected}"
        ]

    def _of_power(self) -> list[str]:
        power = self.power
        if power is None:
            return []
        trained = [row for row in self.rows if not all(run.takes_weights for run in row.runs)]
        seconds = [row.seconds_per_run for row in trained if row.seconds_per_run is not None]
        others = []
        for size, n in power.seeds_for.items():
            text = f"{size:g} BLEU takes {f'over {MOST_SEEDS}' if n is None else n} seeds"
            if n is not None and len(seconds) == len(trained):
                n_at_once = max(1, self.n_worker_slots // self._n_devices)
                text += f" ({format_duration(n * sum(seconds) / n_at_once)})"
            others.append(text)
        then = f"; {', '.join(others)}" if others else ""
        return [
            f"a run's error is ± {power.sd:.2f} BLEU ({counted(power.df, 'degree')} of freedom): "
            f"with a probability of 80%, {power.n_seeds} seeds find "
            f"{rounded(power.detectable, 2)} BLEU{then}"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        totals = ("n_missing", "seconds_left", "device_seconds", "weight_mib")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}
