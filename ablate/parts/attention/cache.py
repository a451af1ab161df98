"""Caches of keys and values for token-by-token decoding.

B rows, G heads of keys and values, T new tokens, S tokens, K d_k, V d_v.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MIN_CAPACITY = 16  # tokens


class KVCache:
    """Keys and values in buffers (B, G, capacity, K or V) that grow as they fill.

    Small buffers stay in the processor's cache, and most sentences end long before ``max_len``.
    """

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self._buffers: list[Tensor] = []
        self._spare: list[Tensor] = []  # `select` copies the rows into these

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> KVCache:
        """Return a full cache of keys ``k`` (B, G, S, K) and values ``v`` (B, G, S, V)."""
        cache = cls(k.size(2))
        cache._buffers = [k.contiguous(), v.contiguous()]  # or every matmul would copy them
        return cache

    def first(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the first ``n`` keys (B, G, n, K) and values (B, G, n, V)."""
        assert self._buffers, "nothing has been written yet"
        k, v = self._buffers
        return k[:, :, :n], v[:, :, :n]

    def extend(self, k: Tensor, v: Tensor, positions: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Append keys ``k`` (B, G, T, K) and values ``v`` (B, G, T, V); return all, as `first`.

        Then there are ``n`` tokens; the new ones have the ``positions`` n - T, ..., n - 1, (T,).
        """
        if not self._buffers:
            self._buffers = [self._empty(x, x.size(0), n) for x in (k, v)]
        elif self._buffers[0].size(2) < n:
            old = self._buffers
            self._buffers = [self._empty(x, x.size(0), n) for x in old]
            for larger, x in zip(self._buffers, old, strict=True):
                larger[:, :, : x.size(2)] = x
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            buffer[:, :, n - new.size(2) : n] = new
        return self.first(n)

    def select(self, rows: Tensor, n: int) -> None:
        """Keep ``rows`` (B',) of the batch, in that order, with their first ``n`` tokens."""
        n_rows, n_next = rows.size(0), min(n + 1, self.max_len)
        spare = self._spare
        if not spare or spare[0].size(0) < n_rows or spare[0].size(2) < n_next:
            spare = [self._empty(x, n_rows, n_next) for x in self._buffers]
        selected = [x[:n_rows] for x in spare]
        for old, new in zip(self._buffers, selected, strict=True):
            torch.index_select(old[:, :, :n], 0, rows, out=new[:, :, :n])
        self._buffers, self._spare = selected, self._buffers

    def _empty(self, like: Tensor, n_rows: int, n: int) -> Tensor:
        capacity = min(self.max_len, max(_MIN_CAPACITY, 2 * n))
        return like.new_empty(n_rows, like.size(1), capacity, like.size(3))


class StaticKVCache(KVCache):
    """Keys and values in buffers that keep their addresses, for work captured in a CUDA graph.

    Each buffer has a second one of its size, and rows are selected from one into the other: after
    two selections all data are back in the first. The buffers have room for ``max_len`` tokens from
    the start, filled with zeros after the ``n`` tokens of ``cache``, which are copied.
    """

    def __init__(self, cache: KVCache, n: int, max_len: int) -> None:
        super().__init__(max_len)
        for old in cache.first(n):
            buffer = old.new_zeros(*old.shape[:2], max_len, old.size(3))
            buffer[:, :, :n] = old
            self._buffers.append(buffer)
            self._spare.append(torch.empty_like(buffer))

    def extend(self, k: Tensor, v: Tensor, positions: Tensor, n: int) -> tuple[Tensor, Tensor]:
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            buffer.index_copy_(2, positions, new.to(buffer.dtype))
        return self.first(n)

    def select(self, rows: Tensor, n: int) -> None:
        """Keep ``rows`` (B',) in that order; if B' is not B, the buffers are reallocated."""
        if rows.size(0) != self._buffers[0].size(0):
            self._spare = [x.new_empty(rows.size(0), *x.shape[1:]) for x in self._buffers]
        for old, new in zip(self._buffers, self._spare, strict=True):
            torch.index_select(old, 0, rows, out=new)
        self._buffers, self._spare = self._spare, self._buffers
        if rows.size(0) != self._spare[0].size(0):
            self._spare = [torch.empty_like(x) for x in self._buffers]
