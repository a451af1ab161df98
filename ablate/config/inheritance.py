"""What a stack takes over from elsewhere where it has no choice of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablate.parts.dims import Side

SIDES: tuple[Side, Side] = ("encoder", "decoder")

Steps = Sequence[str | int]
"""A dotted path, split; numbers are indices of lists."""


def inherited(path: Steps) -> Iterator[tuple[str | int, ...]]:
    """Yield ``path`` and the paths that it inherits from, the nearest first.

    A stack inherits what both stacks share, and cross-attention what attention is:
    ``model.decoder.cross_attention``, ``model.decoder.attention``, ``model.attention``.
    """
    yield tuple(path)
    match path:
        case ["model", "encoder" | "decoder" as side, "cross_attention", *rest]:
            yield from inherited(["model", side, "attention", *rest])
        case ["model", "encoder" | "decoder", *rest]:
            yield ("model", *rest)
