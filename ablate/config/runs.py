"""What an experiment expands to: rows, seeds, runs; and the position of each value in the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from ablate.config.experiment import RunSpec
from ablate.config.header import Match, Negligible, Published
from ablate.config.inheritance import Steps, inherited
from ablate.config.tree import Mark, Node
from ablate.registry import Choice


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str  # ``baseline``, or its name in the experiment
    spec: RunSpec  # of its run with the first seed
    # its differences from the baseline, dotted path to value, as in the YAML; with the values
    # that are matched or tuned, None while they are pending
    changes: dict[str, Any]
    # paths whose value is not the file's, each with how it was chosen: matched or tuned
    chosen: dict[str, str] = field(default_factory=dict)
    # paths whose value is still to be chosen, so that it has no runs yet
    pending: tuple[str, ...] = ()

    @property
    def changes_of_file(self) -> dict[str, Any]:
        """The changes that the file states: without the values that are matched or tuned."""
        others = {*self.chosen, *self.pending}
        return {path: value for path, value in self.changes.items() if path not in others}


@dataclass(frozen=True)
class Tune:
    """Values to try at some paths, the best of which on dev is chosen for every row.

    None of its seeds is a seed of the table.
    """

    axes: dict[str, tuple[Node, ...]] = field(repr=False, compare=False)
    seeds: tuple[int, ...]
    extend: int = 0  # how often a row whose best number is at an end tries another beyond it
    # by how many nats the mean NLL on dev of each row's second best exceeds that of its best
    leads: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def n_candidates(self) -> int:
        return prod(map(len, self.axes.values()))

    def values(self) -> dict[str, list[Any]]:
        """Return the grid as the YAML has it."""
        return {path: [node.as_written() for node in axis] for path, axis in self.axes.items()}

    def ends(self, path: str) -> tuple[float, float] | None:
        """Return the least and the largest number that a row may try; None if they are none."""
        values = self.values()[path]
        if not are_numbers(values):
            return None
        for _ in range(self.extend):
            values = [*values, *filter(None, (beyond(values, min), beyond(values, max)))]
        return min(values), max(values)


def are_numbers(values: Sequence[Any]) -> bool:
    """Return whether an axis has an order, so that it has ends."""
    return len(values) > 1 and all(type(value) in (int, float) for value in values)


def beyond(values: Sequence[float], end: Callable[[Sequence[float]], float]) -> float | None:
    """Return the number as far beyond an end (``min`` or ``max``) as the next one is before it.

    Far is by their ratio; None if a number is not positive, or there is no other whole number.
    """
    last, rest = end(values), [value for value in values if value != end(values)]
    if min(values) <= 0 or not rest:
        return None
    value = last * (last / end(rest))
    if all(isinstance(each, int) for each in values):
        return round(value) if round(value) not in (0, last) else None
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class Origin:
    """Where a row is requested, all its values, and those of its own change (``layer``)."""

    tree: Node
    layer: Node
    at: Mark


@dataclass(frozen=True)
class Experiment:
    """A baseline, its variants, and the seeds each is trained with."""

    name: str  # the file's, with its folder unless that is ``experiments``
    question: str | None
    path: Path  # the file, as it was given; of a shipped name, where it is
    rows: tuple[Row, ...]  # the baseline first
    seeds: tuple[int, ...]
    # of the rows, by name
    origins: dict[str, Origin] = field(default_factory=dict, repr=False, compare=False)
    # the largest differences that are called none
    negligible: Negligible = field(default_factory=Negligible)
    published: Published | None = None  # printed numbers of the same rows, to stand beside our own
    match: Match | None = None  # the quantity in which rows equal the baseline
    tune: Tune | None = None  # the values that are chosen for every row on dev
    # the nodes of these two in the file
    sections: dict[str, Node] = field(default_factory=dict, repr=False, compare=False)
    # what translations are scored by, beside BLEU and chrF, which every run has
    metrics: tuple[Choice, ...] = ()
    # numbers of seeds, ascending, after each of which rows are judged; none for one table
    looks: tuple[int, ...] = ()
    # the same rows in each context by name, if it has some; then all else is that of the first
    contexts: dict[str, Experiment] = field(default_factory=dict)
    # the paths that some context changes
    context_paths: tuple[str, ...] = ()
    # a path whose number in every context the differences are set against
    trend: str | None = None


@dataclass(frozen=True)
class Run:
    """One row with one seed."""

    experiment: str
    variant: str
    spec: RunSpec

    @property
    def seed(self) -> int:
        return self.spec.seed


def locate(tree: Node, path: Steps) -> tuple[Node, bool]:
    """Return the node at ``path`` or its nearest ancestor, and whether it is the node itself.

    Inherited values are located where they are inherited from.
    """
    nearest = [(*tree.descend(steps), len(steps)) for steps in inherited(path)]
    node, depth, length = min(nearest, key=lambda each: each[2] - each[1])
    return node, depth == length
