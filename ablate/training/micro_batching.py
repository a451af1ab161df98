"""A batch in parts that are done one after the other: what does not fit into memory whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD

_SOME_BATCHES = 50  # among which there is one of the usual size


def divide(batch: Batch, n: int) -> list[Batch]:
    """Return the pairs of a batch in ``n`` parts of as equal numbers of pairs as possible.

    The parts keep the width of the batch and, together, its target tokens. Their tokens are
    counted on the device, for which the host waits once per batch.

    Args:
        batch: on any device.
        n: how many parts; a batch of fewer pairs has one part for each.
    """
    n = min(n, batch.src.size(0))
    if n == 1:
        return [batch]
    n_tokens = (batch.tgt_out != PAD).sum(dim=1).cpu().tensor_split(n)  # of each pair
    sides = (x.tensor_split(n) for x in (batch.src, batch.tgt_in, batch.tgt_out))
    return [
        Batch(src, tgt_in, tgt_out, int(counts.sum()), index)
        for src, tgt_in, tgt_out, counts, index in zip(
            *sides, n_tokens, batch.index.tensor_split(n), strict=True
        )
    ]


class Divider(Protocol):
    """What divides batches: an engine."""

    def divided(self, batches: Sequence[Batch], factor: int) -> list[Batch]:
        """Return ``batches`` in parts ``factor`` times smaller than usual."""


def most_parts(engine: Divider, batches: Batches, factor: int) -> int:
    """Return into how many parts a batch is divided at most, of some that all runs share."""
    if factor == 1:
        return 1
    batches = batches.of_epoch(0, 0)
    some = (batches.make(rows) for rows in batches.epoch(0, 0)[:_SOME_BATCHES])
    return max(len(engine.divided([batch], factor)) for batch in some)
