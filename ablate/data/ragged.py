"""Sentences of differing lengths in one array.

B batch, N sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Rows = NDArray[np.int64]


class Ragged(Sequence[Ids]):
    """Sentences of differing lengths (N,), in tokens, end to end in one array of ids."""

    def __init__(self, flat: Ids, lengths: Rows) -> None:
        self.flat = flat
        self.lengths = lengths
        self.starts = np.cumsum(lengths) - lengths

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> Ragged:
        """Lay ``sentences`` end to end."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        flat = np.empty(int(lengths.sum()), dtype=np.int32)
        end = 0
        for sentence in sentences:
            start, end = end, end + len(sentence)
            flat[start:end] = sentence
        return cls(flat, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Ids:  # type: ignore[override]  # no slices: see take
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        start = self.starts[row]
        return self.flat[start : start + self.lengths[row]]

    def take(self, rows: Rows) -> Ragged:
        """Return the sentences of ``rows``, in that order."""
        return self._pick(rows, self.lengths[rows])

    def cut(self, n_tokens: int) -> Ragged:
        """Return every sentence cut to ``n_tokens`` tokens, its last token kept."""
        short = np.minimum(self.lengths, n_tokens)
        cut = self._pick(np.arange(len(self)), short)
        cut.flat[cut.starts + short - 1] = self.flat[self.starts + self.lengths - 1]
        return cut

    def padded(self, rows: Rows, width: int, pad: int) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the sentences of ``rows`` (B,), filled up with ``pad``, and what is no padding.

        Both are (B, ``width``); none of the sentences is longer.
        """
        sentences = self.take(rows)
        is_token = np.arange(width) < sentences.lengths[:, None]
        ids = np.full(is_token.shape, pad, dtype=np.int64)
        ids[is_token] = sentences.flat
        return ids, is_token

    def _pick(self, rows: Rows, lengths: Rows) -> Ragged:
        """Return the first ``lengths`` tokens of the sentences of ``rows``."""
        ends = np.cumsum(lengths)
        shift = np.repeat(self.starts[rows] - (ends - lengths), lengths)
        return Ragged(self.flat[shift + np.arange(len(shift))], lengths)
