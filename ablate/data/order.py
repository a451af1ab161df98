"""The order in which pairs are cut into batches, chosen so that little of a batch is padding.

N pairs, of which both sides have a length in tokens.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_MAX_PADDING = 0.05  # share of all ids
_STRIPS = (0, 1, 2, 3, 4)  # batches of targets in a strip; 0 for no strips


def sorting(src: Numbers, tgt: Numbers, batch_tokens: int) -> tuple[Numbers, ...]:
    """Return the keys that pairs are sorted by, the primary one last, as for `numpy.lexsort`.

    Pairs are sorted by the lengths of their targets, then by those of their sources, both (N,). If
    that leaves more than 5% padding, because a batch has the end of one target length and the
    beginning of the next, neighbouring target lengths form strips, as narrow as possible, in which
    pairs are sorted by their sources: ascending in one strip, descending in the next. If every
    order leaves more padding, the one with the least is chosen.
    """
    best: tuple[Numbers, ...] = ()
    least = math.inf
    for n_batches in _STRIPS:
        keys = _strips(src, tgt, n_batches * batch_tokens) if n_batches else (src, tgt)
        share = padding(src, tgt, np.lexsort(keys), batch_tokens)
        if share < least:
            best, least = keys, share
        if least <= _MAX_PADDING:
            break
    return best


def bounds(lengths: Numbers, batch_tokens: int) -> list[int]:
    """Return the index at which each batch begins among targets of these ``lengths``, and the end.

    A batch is as large as possible: its rows times its longest target are at most
    ``batch_tokens``, unless it is a single pair.
    """
    starts = [0]
    while starts[-1] < len(lengths):
        start = starts[-1]
        max_rows = max(1, batch_tokens // int(lengths[start]))
        longest = np.maximum.accumulate(lengths[start : start + max_rows])
        fits = longest * np.arange(1, len(longest) + 1) <= batch_tokens
        starts.append(start + max(1, int(fits.sum())))
    return starts


def padding(src: Numbers, tgt: Numbers, order: Numbers, batch_tokens: int) -> float:
    """Return the share of padding in all batches, both sides together."""
    if not len(order):
        return 0.0
    starts = np.array(bounds(tgt[order], batch_tokens))
    n_rows = np.diff(starts)
    n_ids = sum(np.maximum.reduceat(side[order], starts[:-1]) @ n_rows for side in (src, tgt))
    return 1 - float(src.sum() + tgt.sum()) / float(n_ids)


def _strips(src: Numbers, tgt: Numbers, n_tokens: int) -> tuple[Numbers, ...]:
    """Return the sorting keys for strips of at least ``n_tokens`` target tokens."""
    tokens_of = np.bincount(tgt) * np.arange(tgt.max(initial=0) + 1)
    strip_of, strip, n_in_strip = np.zeros_like(tokens_of), 0, 0
    for length, n in enumerate(tokens_of):
        strip_of[length] = strip
        n_in_strip += n
        if n_in_strip >= n_tokens:
            strip, n_in_strip = strip + 1, 0
    strips = strip_of[tgt]
    return tgt, np.where(strips % 2, -src, src), strips
