"""A batch in parts that are done one after the other, because it does not fit into memory whole."""

from __future__ import annotations

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD


def divide(batch: Batch, n: int) -> list[Batch]:
    """Split a batch into ``n`` parts of as equal numbers of pairs as possible.

    The parts keep the width of the batch. Their tokens are counted on the device, for which the
    host waits once per batch.

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
