"""The records of an experiment, gathered row by row.

Metrics are named as they are nested in a record: ``test.test2016.bleu``, ``dev.perplexity``.

Speeds are those of rows that took turns, each once in every round of a session. A machine is now
faster and now slower, for all rows alike within a round: log speed = row + round + noise. Rows are
compared only within a session. Median polish (Tukey 1977, "Exploratory Data Analysis", ch. 11)
takes the rounds out and leaves one speed for each row, which one disturbed measurement does not
move. The ratio of rows is the quotient of their speeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.analysis.statistics import Estimate, Interval, Perplexity
from ablate.record import numbers, speed_sessions

Floats = NDArray[np.float64]
Record = Mapping[str, Any]
Records = Mapping[tuple[str, int], Record]
"""The stored record of each row and seed; what is missing has no entry."""

TRAIN_FLOPS = "flops.train"  # of a whole training; no record holds this metric
STATUSES = ("done", "diverged", "oom", "failed", "missing")
_QUALITY = ("dev", "test", "train")
_COST = ("params", "flops", "speed", "memory")
_ONCE = ("speed.", "memory.")
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


@dataclass(frozen=True)
class Summary:
    """One row of an experiment over its seeds.

    Of the metrics, quality (``dev``, ``test``, ``train``) is over the runs that are done, cost
    (``params``, ``flops``, ``speed``, ``memory``) over every run that has it. Rounds are of one
    session, the latest with the baseline, if there is one; without it a speed has no ratio.
    """

    name: str
    outcomes: Mapping[int, str]  # by seed, one of `STATUSES`
    errors: Mapping[int, str]  # by seed, why a run did not end well
    metrics: Mapping[str, Estimate]  # by name
    rounds: Mapping[str, Rounds] = field(default_factory=dict)  # speeds that were measured by turns
    speeds: Mapping[str, Speed] = field(default_factory=dict)  # of these, with the ratio
    weights: Mapping[int, str] = field(default_factory=dict)  # digests of the trained ones, by seed

    def count(self, status: str) -> int:
        return len(self.seeds_with(status))

    def seeds_with(self, status: str) -> list[int]:
        return [seed for seed, outcome in self.outcomes.items() if outcome == status]

    @property
    def is_complete(self) -> bool:
        return self.count("done") == len(self.outcomes)


def summarise(
    names: Sequence[str], seeds: Sequence[int] | Mapping[str, Sequence[int]], records: Records
) -> list[Summary]:
    """Gather the records of the rows called ``names``, the baseline first.

    ``seeds`` are those of all rows, or of each by name.
    """
    rows: list[Summary] = []
    sessions = {}
    for name in names:
        own = seeds[name] if isinstance(seeds, Mapping) else seeds
        by_seed = {seed: records[name, seed] for seed in own if (name, seed) in records}
        rows.append(
            Summary(
                name=name,
                outcomes={s: by_seed[s]["status"] if s in by_seed else "missing" for s in own},
                errors={s: record["error"] for s, record in by_seed.items() if record.get("error")},
                metrics=_metrics(by_seed),
                weights={s: sha256 for s in by_seed if (sha256 := _weights(by_seed[s]))},
            )
        )
        sessions[name] = _rounds_of(by_seed.values())
    rounds, speeds = _speeds(sessions)
    return [replace(row, rounds=rounds[row.name], speeds=speeds[row.name]) for row in rows]


def trained_by(rows: Sequence[Summary]) -> dict[str, str]:
    """Return the rows that have the weights of a row above them, each with the first such row.

    They differ in decoding alone, or in a part that computes the same.
    """
    first: dict[tuple[int, str], Summary] = {}  # rows by seed and digest
    trained: dict[str, str] = {}
    for row in rows:
        for above in (first[run] for run in row.weights.items() if run in first):
            common = row.weights.keys() & above.weights.keys()
            if all(row.weights[seed] == above.weights[seed] for seed in common):
                trained[row.name] = above.name
                break
        for run in row.weights.items():
            first.setdefault(run, row)
    return trained


def is_measured_once(metric: str) -> bool:
    """Return whether all seeds of a row share one measurement, which has no spread over them."""
    return metric.startswith(_ONCE)


def have_one_tokenizer(records: Iterable[Record]) -> bool:
    """Return whether all runs read the same target tokens."""
    known = {record.get("tokenizer", {}).get("fingerprint") for record in records}
    return len(known - {None}) <= 1


def evaluated_sets(records: Records) -> list[str]:
    """Return the names of the test sets in the order in which the records hold them."""
    names = (name for record in records.values() for name in record.get("test", {}))
    return list(dict.fromkeys(names))


def _weights(record: Record) -> str | None:
    return record.get("files", {}).get("model.safetensors", {}).get("sha256")


def _metrics(by_seed: Mapping[int, Record]) -> dict[str, Estimate]:
    values: dict[str, dict[int, float]] = {}
    for seed, record in by_seed.items():
        sections = _COST + (_QUALITY if record["status"] == "done" else ())
        for section in sections:
            for name, value in numbers(record.get(section), section):
                values.setdefault(name, {})[seed] = value
    per_token = values.get("flops.train_per_target_token", {})
    tokens = values.get("train.target_tokens", {})
    if both := {seed: per_token[seed] * tokens[seed] for seed in per_token if seed in tokens}:
        values[TRAIN_FLOPS] = both
    metrics = {name: Estimate(by_seed) for name, by_seed in values.items()}
    for name, nll in list(metrics.items()):
        if name.endswith(".nll"):
            metrics[f"{name.removesuffix('nll')}perplexity"] = Perplexity.of(nll)
    return metrics


def _speeds(
    rows: Mapping[str, Mapping[str, Mapping[str, Rounds]]],
) -> tuple[dict[str, dict[str, Rounds]], dict[str, dict[str, Speed]]]:
    """Return by row and metric the rounds that count and what they come to.

    The rounds are given by row, metric and session, the earliest first. Each row is compared in its
    latest session with the baseline; one that has none is alone. The baseline has the speed of the
    session of most rows, and the others theirs in proportion to it.
    """
    baseline = next(iter(rows))
    rounds: dict[str, dict[str, Rounds]] = {row: {} for row in rows}
    speeds: dict[str, dict[str, Speed]] = {row: {} for row in rows}
    for metric in dict.fromkeys(metric for of_row in rows.values() for metric in of_row):
        by_row = {row: of_row[metric] for row, of_row in rows.items() if metric in of_row}
        theirs = by_row.get(baseline, {})
        sessions: dict[str, dict[str, Rounds]] = {}
        for row, of_row in by_row.items():
            latest = rounds[row][metric] = list(of_row.values())[-1]
            speeds[row][metric] = Speed(latest.median, latest.n)
            shared = [session for session in of_row if session in theirs]
            if shared and row != baseline:
                together = sessions.setdefault(shared[-1], {baseline: theirs[shared[-1]]})
                together[row] = of_row[shared[-1]]
        for together in sorted(sessions.values(), key=len):
            compared = compare_speeds({row: each.values for row, each in together.items()})
            for row, speed in compared.items():
                rounds[row][metric], speeds[row][metric] = together[row], speed
        for known in speeds.values():  # the machine may have been faster in other sessions
            if metric in known and (ratio := known[metric].ratio) is not None:
                value = ratio * speeds[baseline][metric].value
                known[metric] = replace(known[metric], value=value)
    return rounds, speeds


def _rounds_of(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Rounds]]:
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
    """Return the speed of every row from its speeds by round, of which it may lack the last."""
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
    """Return the rows' effects, the middle round's added; values (rows, rounds) may be NaN."""
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
