"""Compressed files, which are unpacked up to a bound: a small file may hold any number of zeros."""

from __future__ import annotations

import gzip
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_RATIO = 500
"""The most bytes of content per byte of a file: text has 10, tables have 100."""
_FREE = 2**26
"""Bytes that any file may hold."""


def gunzip(file: IO[bytes]) -> IO[bytes]:
    """Return the content of a file that is packed by gzip."""
    return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]


_MAGIC: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x1f\x8b": gunzip,
}
"""How a file is unpacked, by its first bytes."""
_LONGEST = max(map(len, _MAGIC))
_MAX_LISTED = 5


@contextmanager
def member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    """Yield a file of a zip archive; an archive that cannot be read is an `OSError`."""
    try:
        with zipfile.ZipFile(archive) as files:
            info = files.getinfo(name)
            if info.file_size > max(_FREE, _RATIO * info.compress_size):
                raise OSError(f"it holds over {_RATIO} times its size")
            with files.open(info) as file:
                yield file
    except KeyError:
        has = ", ".join(files.namelist()[:_MAX_LISTED])
        raise OSError(f"{archive.name} has no {name!r}; it has {has}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise OSError(f"{archive.name} cannot be unpacked: {error}") from error


class Unpacked:
    """Content packed by gzip, xz or nothing, to be read in order; its first bytes say how."""

    def __init__(
        self, file: IO[bytes], name: str, unpack: Callable[[IO[bytes]], Any] | None = None
    ) -> None:
        self._name = name
        start = file.read(_LONGEST)
        n_packed = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._most = max(_FREE, _RATIO * n_packed)
        if unpack is None:
            unpack = next((_MAGIC[magic] for magic in _MAGIC if start.startswith(magic)), None)
        self._is_packed = unpack is not None
        self._stream: Any = unpack(file) if unpack is not None else file

    def read(self, n: int) -> bytes:
        """Return at most the next ``n`` bytes; a file that holds too many is an `OSError`."""
        room = self._most - self.tell() + 1 if self._is_packed else n
        content: bytes = self._stream.read(min(n, room))
        self._check()
        return content

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and self._is_packed:
            position = min(position, self._most + 1)
        reached: int = self._stream.seek(position, whence)
        self._check()
        return reached

    def tell(self) -> int:
        return int(self._stream.tell())

    def _check(self) -> None:
        if self._is_packed and self.tell() > self._most:
            raise OSError(
                f"{self._name} unpacks to more than {self._most / 2**20:,.0f} MiB, "
                f"over {_RATIO} times its size"
            )
