"""Many sentences: as ids, end to end in one array, and as text, in a file.

B batch, N sentences.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ablate.data.cache import anonymous_file

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


_BLOCK = 10_000


class Lines(Sequence[str]):
    """A list of sentences in an anonymous file, which is deleted with the list.

    Sentences are read on access, several at a time by slices and loops. Only the offset of each is
    in memory, 8 bytes a sentence. A full disk is an OSError.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._file = anonymous_file()
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])
        self._lock = threading.Lock()  # all threads share the position in the file
        self.extend(lines)

    def extend(self, lines: Iterable[str]) -> None:
        with self._lock:
            self._file.seek(self._ends[-1])
            for line in lines:
                self._ends.append(self._ends[-1] + self._file.write(line.encode()))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            yield from self._between(start, min(start + _BLOCK, len(self)))

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> tuple[str, ...]: ...

    def __getitem__(self, row: int | slice) -> str | tuple[str, ...]:
        rows = range(len(self))[row]
        if isinstance(rows, int):
            return self._between(rows, rows + 1)[0]
        if rows.step != 1:
            return tuple(self[i] for i in rows)
        return tuple(self._between(rows.start, rows.stop))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of any list

    def _between(self, start: int, stop: int) -> list[str]:
        if start >= stop:
            return []
        ends = self._ends[start : stop + 1]
        with self._lock:
            self._file.seek(ends[0])
            content = self._file.read(ends[-1] - ends[0])
        return [content[a - ends[0] : b - ends[0]].decode() for a, b in pairwise(ends)]
