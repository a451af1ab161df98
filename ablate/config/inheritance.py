"""The paths from which a stack inherits the choices that it does not make itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.parts.dims import Side

SIDES: tuple[Side, Side] = ("encoder", "decoder")

Steps = Sequence[str | int]
"""A dotted path, split; numbers are indices of lists."""


def inherited(path: Steps) -> Iterator[tuple[str | int, ...]]:
    """Yield ``path`` and the paths that it inherits from, the nearest first.

    ``model.decoder.cross_attention``, ``model.decoder.attention``, ``model.attention``.
    """
    yield tuple(path)
    match path:
        case ["model", "encoder" | "decoder" as side, "cross_attention", *rest]:
            yield from inherited(["model", side, "attention", *rest])
        case ["model", "encoder" | "decoder", *rest]:
            yield ("model", *rest)


@functools.cache
def paths_in_model(side: Side, key: str) -> tuple[Steps, ...]:
    """Return the paths, from the model on, of a stack's choice and of those that it inherits."""
    return tuple(path[1:] for path in inherited(("model", side, key)))


def value_at(spec: Mapping[str, Any], path: str) -> Any:
    """Return the value of a run, dumped whole, at a dotted path, or inherited; None if none is."""
    for steps in inherited(path.split(".")):
        choice = steps[:3] if steps[1:2] in (("encoder",), ("decoder",)) else steps
        if _walk(spec, choice) is not None:  # with all its options, of which none is inherited
            return _walk(spec, steps)
    return None


def _walk(value: Any, steps: Steps) -> Any:
    for at, step in enumerate(steps):
        if at and steps[at - 1] == "n_layers" and isinstance(value, int):
            return value  # one number for both stacks
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value
