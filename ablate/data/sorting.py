"""In which order pairs are cut into batches, so that next to nothing of a batch is padding.

N pairs, of which both sides have a length in tokens.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_MUCH = 0.05  # of all that a model reads may be padding
_STRIPS = (0, 1, 2, 3, 4)  # batches of targets in a strip; 0 for no strips


def sorting(src: Numbers, tgt: Numbers, batch_tokens: int) -> tuple[Numbers, ...]:
    """Return what pairs are sorted by, what counts most last, as `numpy.lexsort` takes it.

    They are sorted by the lengths of their targets, then by those of their sources. Where that
    leaves more than 5% padding, because a batch holds the end of one target length and the
    beginning of the next, as few neighbouring target lengths as will do form a strip, in which
    pairs are sorted by their sources: longer and longer in one strip, shorter and shorter in the
    next. If nothing leaves so little padding, it is what leaves least.

    Args:
        src: lengths of the sources, (N,).
        tgt: lengths of the targets, (N,).
        batch_tokens: target tokens of a batch.
    """
    best: tuple[Numbers, ...] = ()
    least = math.inf
    for n_batches in _STRIPS:
        keys = _strips(src, tgt, n_batches * batch_tokens) if n_batches else (src, tgt)
        share = padding(src, tgt, np.lexsort(keys), batch_tokens)
        if share < least:
            best, least = keys, share
        if least <= _MUCH:
            break
    return best


def bounds(lengths: Numbers, batch_tokens: int) -> list[int]:
    """Return where batches begin among targets of these ``lengths``, and the end.

    A batch is as large as it may be: its rows times its longest target are at most
    ``batch_tokens``, unless it is a single pair.
    """
    found = [0]
    while found[-1] < len(lengths):
        start = found[-1]
        n_most = max(1, batch_tokens // int(lengths[start]))
        longest = np.maximum.accumulate(lengths[start : start + n_most])
        fits = longest * np.arange(1, len(longest) + 1) <= batch_tokens
        found.append(start + max(1, int(fits.sum())))
    return found


def padding(src: Numbers, tgt: Numbers, order: Numbers, batch_tokens: int) -> float:
    """Return which share of all batches is padding, both sides together.

    Args:
        src: lengths of the sources, (N,).
        tgt: lengths of the targets, (N,).
        order: in which pairs are cut into batches, (N,).
        batch_tokens: target tokens of a batch.
    """
    if not len(order):
        return 0.0
    starts = np.array(bounds(tgt[order], batch_tokens))
    n_rows = np.diff(starts)
    n_made = sum(np.maximum.reduceat(side[order], starts[:-1]) @ n_rows for side in (src, tgt))
    return 1 - float(src.sum() + tgt.sum()) / float(n_made)


def _strips(src: Numbers, tgt: Numbers, n_tokens: int) -> tuple[Numbers, ...]:
    """Return what to sort by where each strip has at least ``n_tokens`` target tokens."""
    of_length = np.bincount(tgt) * np.arange(tgt.max(initial=0) + 1)
    strip_of, strip, n_held = np.zeros_like(of_length), 0, 0
    for length, n in enumerate(of_length):
        strip_of[length] = strip
        n_held += n
        if n_held >= n_tokens:
            strip, n_held = strip + 1, 0
    strips = strip_of[tgt]
    return tgt, np.where(strips % 2, -src, src), strips
