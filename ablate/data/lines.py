"""Sentences on disk: a text of any size is processed in little memory."""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

from ablate.data.cache import anonymous_file

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
        self._is_at_end = True
        self._lock = threading.Lock()  # all threads share the position in the file
        self.extend(lines)

    def extend(self, lines: Iterable[str]) -> None:
        """Append sentences."""
        with self._lock:
            if not self._is_at_end:
                self._file.seek(self._ends[-1])
            self._is_at_end = False
            for line in lines:
                self._ends.append(self._ends[-1] + self._file.write(line.encode()))
            self._is_at_end = True

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
            self._is_at_end = False
            content = self._file.read(ends[-1] - ends[0])
        return [content[a - ends[0] : b - ends[0]].decode() for a, b in pairwise(ends)]
