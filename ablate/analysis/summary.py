"""The records of an experiment, gathered row by row.

Metrics are named as they are nested in a record: ``test.test2016.bleu``, ``dev.perplexity``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ablate.analysis.rounds import Rounds, rounds_of
from ablate.analysis.speeds import Speed, compare_speeds
from ablate.analysis.statistics import Estimate

Record = Mapping[str, Any]
Records = Mapping[tuple[str, int], Record]
"""The stored record of each row and seed; what is missing has no entry."""

STATUSES = ("done", "diverged", "oom", "failed", "missing")
_QUALITY = ("dev", "test", "train")
_COST = ("params", "flops", "speed", "memory")
_ONCE = ("speed.", "memory.")

TRAIN_FLOPS = "flops.train"
"""The metric that no record holds: the FLOPs of a whole training."""


@dataclass(frozen=True)
class Summary:
    """One row of an experiment over its seeds.

    Attributes:
        outcomes: by seed, one of `STATUSES`.
        errors: by seed, the reason of what did not end well, where the record has one.
        metrics: by name. Quality (``dev``, ``test``, ``train``) over the runs that are done;
            cost (``params``, ``flops``, ``speed``, ``memory``) over every run that has it.
            `TRAIN_FLOPS` is the product of what a token costs and the tokens.
        rounds: the speeds among the metrics that were measured by turns.
        speeds: of these, each row's speed and its ratio to the baseline's; a row that did not take
            turns with the baseline has no ratio.
    """

    name: str
    outcomes: Mapping[int, str]
    errors: Mapping[int, str]
    metrics: Mapping[str, Estimate]
    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    speeds: Mapping[str, Speed] = field(default_factory=dict)

    def count(self, status: str) -> int:
        """Return how many runs ended with ``status``."""
        return Counter(self.outcomes.values())[status]

    @property
    def is_complete(self) -> bool:
        """Whether every run is done."""
        return self.count("done") == len(self.outcomes)


def summarise(names: Sequence[str], seeds: Sequence[int], records: Records) -> list[Summary]:
    """Gather the records of the rows called ``names``, the baseline first."""
    rows: list[Summary] = []
    for name in names:
        by_seed = {seed: records[name, seed] for seed in seeds if (name, seed) in records}
        rows.append(
            Summary(
                name=name,
                outcomes={s: by_seed[s]["status"] if s in by_seed else "missing" for s in seeds},
                errors={s: record["error"] for s, record in by_seed.items() if record.get("error")},
                metrics=_metrics(by_seed),
                rounds=rounds_of(by_seed.values()),
            )
        )
    speeds = _speeds(rows)
    return [replace(row, speeds=speeds[row.name]) for row in rows]


def is_measured_once(metric: str) -> bool:
    """Return whether all seeds of a row share one measurement, which has no spread over them."""
    return metric.startswith(_ONCE)


def evaluated_sets(records: Records) -> list[str]:
    """Return the names of the test sets in the order in which the records hold them."""
    return list(
        dict.fromkeys(name for record in records.values() for name in record.get("test", {}))
    )


def _metrics(by_seed: Mapping[int, Record]) -> dict[str, Estimate]:
    values: dict[str, dict[int, float]] = {}
    for seed, record in by_seed.items():
        sections = _COST + (_QUALITY if record["status"] == "done" else ())
        for section in sections:
            for name, value in _numbers(section, record.get(section)):
                values.setdefault(name, {})[seed] = value
    per_token = values.get("flops.train_per_target_token", {})
    tokens = values.get("train.target_tokens", {})
    if both := {seed: per_token[seed] * tokens[seed] for seed in per_token if seed in tokens}:
        values[TRAIN_FLOPS] = both
    return {name: Estimate(by_seed) for name, by_seed in values.items()}


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield every number at or below ``value``, with its dotted name; booleans are none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}.{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def _speeds(rows: Sequence[Summary]) -> dict[str, dict[str, Speed]]:
    """Compare the speeds of rows that took turns with the baseline; leave the others alone."""
    speeds: dict[str, dict[str, Speed]] = {row.name: {} for row in rows}
    for metric in dict.fromkeys(metric for row in rows for metric in row.rounds):
        of_rows = {row.name: row.rounds[metric] for row in rows if metric in row.rounds}
        baseline = of_rows.get(rows[0].name)
        together = {
            name: rounds.values
            for name, rounds in of_rows.items()
            if baseline and rounds.session == baseline.session
        }
        compared = compare_speeds(together) if together else {}
        for name, rounds in of_rows.items():
            alone = Speed(rounds.median, rounds.n)
            speeds[name][metric] = compared.get(name, alone)
    return speeds
