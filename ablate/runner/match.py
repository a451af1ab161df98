"""Solving for the whole number by which a row has as much of something as the baseline.

Parameters are counted on the built model with the vocabulary of the corpus. FLOPs of training are
those of a step on the corpus's first batch, which every record holds too, times the target tokens
that the row trains on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from ablate import measuring
from ablate.config import Experiment, Row, RunSpec, unmatched, value_at, with_match
from ablate.config.experiment import TrainingSpec
from ablate.config.identity import canonical, files_of, plugins_of
from ablate.data.batches import Batches
from ablate.data.corpus import Corpus
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import PAD
from ablate.errors import DataError, SpecError
from ablate.hashing import digest
from ablate.measuring.counts import FlopCounter
from ablate.model import assemble
from ablate.registry import build
from ablate.training.step import count_passes

Cost = Callable[[RunSpec], float]
"""How much of something a run has; raises a `SpecError` if there is no such run."""

_MAX_VALUE = 2**24
_MAX_DISTANCE = 128  # multiples on either side of a value that is refused
_MAX_TRIES = 60
_ROUNDING = 1e-9  # of equal costs, relative


class UnmatchedError(Exception):
    """No value brings a row near enough to the baseline."""


def matched_rows(experiment: Experiment) -> Iterator[Row]:
    """Return the rows to which the experiment's ``match`` applies."""
    match = experiment.match
    assert match is not None
    return (row for row in experiment.rows[1:] if match.applies_to(row.name))


def match_key(experiment: Experiment, row: Row, corpus_fingerprint: str) -> str:
    """Return 16 hex digits for what a value matched by measurement is the answer to.

    Machine, engine and the meaning of ``auto`` are no part of it, although the time depends on
    them: the value is part of the row's spec, so that runs on all machines must have the one that
    was measured first. The stored match names the machine.
    """
    assert experiment.match is not None
    specs = [each.spec for each in (experiment.rows[0], row)]
    content: dict[str, Any] = {
        "match": experiment.match.model_dump(exclude={"rows", "exclude"}),
        "specs": [{**canonical(spec), "seed": None} for spec in specs],
    }
    files = [files_of(spec, corpus_fingerprint) for spec in specs]
    if any(files):
        content["files"] = files
    plugins = [plugins_of(spec) for spec in specs]
    if any(plugins):
        content["plugins"] = [
            {path: plugin.identity for path, plugin in each.items()} for each in plugins
        ]
    return digest([json.dumps(content, sort_keys=True)])[:16]


def match_by_counting(experiment: Experiment) -> Experiment:
    """Return an experiment whose rows have equal counts; they are pending without a corpus."""
    match = experiment.match
    assert match is not None
    if not is_available(experiment.rows[0].spec):
        return with_match(experiment, {row.name: None for row in matched_rows(experiment)})
    cost = CostCounter(match.on)
    target = cost(experiment.rows[0].spec)
    return with_solutions(experiment, lambda row: solve(experiment, row, cost, target))


def with_solutions(experiment: Experiment, value_for: Callable[[Row], int | None]) -> Experiment:
    """Return an experiment whose rows have the values that match them to the baseline.

    ``value_for`` returns the value of a row, None if it is not changed, or raises an
    `UnmatchedError`. A `SpecError` names every row that cannot be matched.
    """
    values: dict[str, int | None] = {}
    reasons: dict[str, str] = {}
    for row in matched_rows(experiment):
        try:
            if (value := value_for(row)) is not None:
                values[row.name] = value
        except UnmatchedError as error:
            reasons[row.name] = str(error)
    if reasons:
        raise unmatched(experiment, reasons)
    return with_match(experiment, values)


def solve(
    experiment: Experiment, row: Row, cost: Cost, target: float, *, is_measured: bool = False
) -> int | None:
    """Return the value of ``match.via`` that brings a row's cost nearest to the ``target``.

    It is None if the row is within the tolerance as it is. If costs are measured, which is slow and
    inexact, it is the first value within the tolerance. An `UnmatchedError` says that none is.
    """
    match = experiment.match
    assert match is not None
    specs = (each.spec.model_dump(mode="json") for each in (row, experiment.rows[0]))
    values = (value_at(spec, match.via) for spec in specs)
    start = next((value for value in values if value is not None), None)
    if start is None:
        with_match(experiment, {row.name: 1})  # raises an error that names the unknown option
    if isinstance(start, bool) or not isinstance(start, int) or start < 1:
        raise UnmatchedError(f"needs the path of a whole number; {match.via} is {start!r}")

    def cost_with(value: int) -> float:
        changed = with_match(experiment, {row.name: value})
        return cost(next(each.spec for each in changed.rows if each.name == row.name))

    if abs(cost(row.spec) / target - 1) <= match.tolerance:
        return None
    search = _Search(cost_with, target, match.multiple_of, match.tolerance if is_measured else 0.0)
    best = search.nearest(start)
    if best is not None and abs(search.costs[best] / target - 1) <= match.tolerance:
        return best
    name, costs = match.via.rpartition(".")[2], search.costs
    if not costs:
        raise UnmatchedError(f"no {name} near {start} is possible; match via another path")
    near = sorted(costs, key=lambda value: abs(costs[value] - target))[:2]
    tried = "; ".join(f"{value} gives {costs[value] / target - 1:+.1%}" for value in sorted(near))
    noise = match.tolerance if is_measured else _ROUNDING
    if len(costs) > 1 and max(costs.values()) - min(costs.values()) <= noise * target:
        raise UnmatchedError(f"{name} does not change the {match.quantity}: {tried}")
    raise UnmatchedError(
        f"no {name} gives the baseline's {match.quantity} within {match.tolerance:.3g}: {tried}; "
        "raise match.tolerance, match via another path, or name the row in match.exclude"
    )


@dataclass
class _Search:
    """Finds where a cost passes its target, by regula falsi on multiples."""

    cost: Callable[[int], float]  # of a value; raises `SpecError` where no model can have it
    target: float  # the cost to reach
    step: int  # values are multiples of this
    tolerance: float  # the search ends at a value whose cost is as near, relative to the target
    costs: dict[int, float] = field(default_factory=dict)  # by value

    def nearest(self, start: int) -> int | None:
        """Return the value whose cost is nearest to the target; None if none is possible."""
        if self._bracket(start):
            self._narrow()
        return min(self.costs, key=lambda v: (abs(self.costs[v] - self.target), v), default=None)

    def _bracket(self, start: int) -> bool:
        """Double or halve the value until its cost has passed the target; return whether it has."""
        value = self._try_near(start, 0, 2 * _MAX_VALUE)
        is_low = value is not None and self.costs[value] < self.target
        while value is not None and not self._is_enough() and not self._ends():
            guess = value * 2 if is_low else value // 2
            if not self.step <= guess <= _MAX_VALUE:
                break
            low, high = (value, 2 * _MAX_VALUE) if is_low else (0, value)
            value = self._try_near(guess, low, high)
        return bool(self._ends())

    def _narrow(self) -> None:
        for _ in range(_MAX_TRIES):
            ends = self._ends()
            if len(ends) < 2 or self._is_enough():
                return
            low, high = ends
            at_low, at_high = self.costs[low], self.costs[high]
            share = (self.target - at_low) / (at_high - at_low)
            guess = low + round(share * (high - low) / self.step) * self.step
            guess = min(max(guess, low + self.step), high - self.step)
            if not low < guess < high or self._try_near(guess, low, high) is None:
                return

    def _ends(self) -> list[int]:
        """Return the two neighbours between which the target lies, if there are any."""
        values = sorted(self.costs)
        for low, high in pairwise(values):
            if (self.costs[low] - self.target) * (self.costs[high] - self.target) < 0:
                return [low, high]
        return []

    def _is_enough(self) -> bool:
        off = (abs(cost / self.target - 1) for cost in self.costs.values())
        return min(off, default=1.0) <= self.tolerance

    def _try_near(self, guess: int, low: int, high: int) -> int | None:
        """Compute the cost of the possible value nearest to ``guess`` between two limits."""
        middle = max(1, round(guess / self.step)) * self.step
        for away in range(_MAX_DISTANCE):
            for value in dict.fromkeys((middle + away * self.step, middle - away * self.step)):
                if low < value < high and value not in self.costs:
                    try:
                        self.costs[value] = self.cost(value)
                    except (SpecError, DataError):
                        continue
                    return value
        return None


def is_available(run: RunSpec) -> bool:
    """Return whether the corpus of a run is on this machine."""
    return build(Corpus, run.corpus, at="corpus").is_available()


class CostCounter:
    """Counts the parameters of runs, or the floating-point operations of their whole trainings."""

    def __init__(self, on: str) -> None:
        self._on = on
        self._flops = FlopCounter()
        self._prepared: dict[tuple[str | int | None, ...], tuple[Prepared, Batches]] = {}

    def __call__(self, run: RunSpec) -> float:
        choices = run.corpus.model_dump_json(), run.tokenizer.model_dump_json()
        training = run.training
        batching = training.batch_tokens, training.batch_by
        key = (*choices, run.model.dims.max_len, *batching, training.teacher)
        if key not in self._prepared:
            prepared = prepare(run)
            of_text = Batches(prepared.train, training.batch_tokens, PAD, by=training.batch_by)
            self._prepared[key] = prepared, of_text.of_epoch(0, 0)
        prepared, batches = self._prepared[key]
        with torch.device("meta"):
            model = assemble(run.model, prepared.tokenizers.vocabulary, PAD)
        if self._on == "params":
            return float(measuring.count_parameters(model)["total"])
        batch = batches.make(batches.epoch(0, 0)[0])
        n_tokens = target_tokens(run.training, batches.mean_tokens, batches.n_per_epoch)
        return self._flops.count(model, batch, count_passes(run.training)) * n_tokens


def target_tokens(training: TrainingSpec, per_batch: float, batches_per_epoch: float) -> float:
    """Return how many target tokens a training lasts for, which is a whole number of steps."""
    per_step = training.accumulate * per_batch
    if training.target_tokens is not None:
        return math.ceil(training.target_tokens / per_step) * per_step
    if training.epochs is not None:
        n_batches = training.epochs * batches_per_epoch
        return max(1, int(n_batches // training.accumulate)) * per_step
    assert training.steps is not None, "the spec asks for one of the three"
    return training.steps * per_step
