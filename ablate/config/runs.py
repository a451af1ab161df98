"""What an experiment comes to: rows, seeds, runs; and where the file says each thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.config.experiment import SIDES, RunSpec
from ablate.config.negligible import Negligible
from ablate.config.published import Published
from ablate.config.source import Mark, Node


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: ``baseline``, or what the experiment calls it.
        spec: of its run with the first seed.
        changes: what differs from the baseline: dotted path to value, as the YAML says it.
    """

    name: str
    spec: RunSpec
    changes: dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """Where a row comes from.

    Attributes:
        tree: everything that is said of it.
        layer: of that, its own change; for the baseline, everything.
        at: where the row is asked for.
    """

    tree: Node
    layer: Node
    at: Mark


@dataclass(frozen=True)
class Experiment:
    """A baseline, its variants, and the seeds each is trained with.

    Attributes:
        name: the file's, with its folder unless that is ``experiments``.
        path: the file, as it was given.
        rows: the baseline first.
        origins: of the rows, by name.
        negligible: how small a difference must be not to matter.
        published: what others have printed of the same rows, to stand beside our numbers.
    """

    name: str
    question: str | None
    path: Path
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    origins: dict[str, Origin] = field(default_factory=dict, repr=False, compare=False)
    negligible: Negligible = field(default_factory=Negligible)
    published: Published | None = None

    def place(self, row: str, path: str) -> Mark:
        """Return where the value at ``path`` of a row is said, or what holds it, or the file."""
        return locate(self.origins[row].tree, path.split("."))[0].mark


@dataclass(frozen=True)
class Run:
    """One row with one seed."""

    experiment: str
    variant: str
    spec: RunSpec

    @property
    def seed(self) -> int:
        """Return the seed."""
        return self.spec.seed


def locate(tree: Node, path: Sequence[str | int]) -> tuple[Node, bool]:
    """Return the node at ``path`` or its nearest ancestor, and whether it is the node itself.

    What a stack does not say of its own is looked for where both stacks share it, and what
    cross-attention does not say, in attention.
    """
    ways = [(*tree.descend(spelling), len(spelling)) for spelling in _spellings(list(path))]
    node, depth, length = min(ways, key=lambda way: way[2] - way[1])
    return node, depth == length


def _spellings(path: list[str | int]) -> Iterator[list[str | int]]:
    yield path
    if path[:1] == ["model"] and path[1:2] and path[1] in SIDES:
        if path[2:3] == ["cross_attention"]:
            yield [*path[:2], "attention", *path[3:]]
            yield ["model", "attention", *path[3:]]
        else:
            yield ["model", *path[2:]]
