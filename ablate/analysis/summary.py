"""The records of an experiment, gathered row by row.

Metrics are named as they are nested in a record: ``test.test2016.bleu``, ``dev.perplexity``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.analysis.rounds import Rounds, rounds_of
from ablate.analysis.statistics import Estimate, paired

Record = Mapping[str, Any]
Records = Mapping[tuple[str, int], Record]
"""The stored record of each row and seed; what is missing has no entry."""

STATUSES = ("done", "diverged", "oom", "failed", "missing")
_QUALITY = ("dev", "test", "train")
_COST = ("params", "flops", "speed", "memory")
_ONCE = ("speed.", "memory.")


@dataclass(frozen=True)
class Summary:
    """One row of an experiment over its seeds.

    Attributes:
        outcomes: by seed, one of `STATUSES`.
        errors: by seed, the reason of what did not end well, where the record has one.
        metrics: by name. Quality (``dev``, ``test``, ``train``) over the runs that are done;
            cost (``params``, ``flops``, ``speed``, ``memory``) over every run that has it.
        differences: this row minus the baseline, seed by seed; empty for the baseline, and without
            ``speed`` and ``memory``, which are measured once for all seeds.
        rounds: the speeds among the metrics that were measured by turns.
        ratios: of these, this row over the baseline, round by round; empty for the baseline, and
            where the two did not take turns.
    """

    name: str
    outcomes: Mapping[int, str]
    errors: Mapping[int, str]
    metrics: Mapping[str, Estimate]
    differences: Mapping[str, Estimate]
    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    ratios: Mapping[str, Rounds] = field(default_factory=dict)

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
        found = {seed: records[name, seed] for seed in seeds if (name, seed) in records}
        metrics = _metrics(found)
        differences = {} if not rows else _differences(metrics, rows[0].metrics)
        rounds = rounds_of(found.values())
        ratios = {} if not rows else _ratios(rounds, rows[0].rounds)
        rows.append(
            Summary(
                name=name,
                outcomes={s: found[s]["status"] if s in found else "missing" for s in seeds},
                errors={s: record["error"] for s, record in found.items() if record.get("error")},
                metrics=metrics,
                differences=differences,
                rounds=rounds,
                ratios=ratios,
            )
        )
    return rows


def is_measured_once(metric: str) -> bool:
    """Return whether all seeds of a row share one measurement, which has no spread over them."""
    return metric.startswith(_ONCE)


def evaluated_sets(records: Records) -> list[str]:
    """Return the names of the test sets in the order in which the records hold them."""
    return list(
        dict.fromkeys(name for record in records.values() for name in record.get("test", {}))
    )


def _metrics(found: Mapping[int, Record]) -> dict[str, Estimate]:
    values: dict[str, dict[int, float]] = {}
    for seed, record in found.items():
        sections = _COST + (_QUALITY if record["status"] == "done" else ())
        for section in sections:
            for name, value in _numbers(section, record.get(section)):
                values.setdefault(name, {})[seed] = value
    return {name: Estimate(by_seed) for name, by_seed in values.items()}


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield every number at or below ``value``, with its dotted name; booleans are none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}.{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def _differences(
    ours: Mapping[str, Estimate], baseline: Mapping[str, Estimate]
) -> dict[str, Estimate]:
    both = {
        name: paired(ours[name], baseline[name])
        for name in ours
        if name in baseline and not is_measured_once(name)
    }
    return {name: estimate for name, estimate in both.items() if estimate is not None}


def _ratios(ours: Mapping[str, Rounds], baseline: Mapping[str, Rounds]) -> dict[str, Rounds]:
    both = {name: ours[name].over(baseline[name]) for name in ours if name in baseline}
    return {name: ratio for name, ratio in both.items() if ratio is not None}
