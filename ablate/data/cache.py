"""The user's cache of files that can be computed or downloaded again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from platformdirs import user_cache_dir

from ablate.errors import DataError
from ablate.hashing import sha256_of_text
from ablate.writing import write_whole


def cache_folder(name: str) -> Path:
    """Return the cache's folder of one kind; ``$ABLATE_CACHE`` moves the whole cache."""
    return Path(os.environ.get("ABLATE_CACHE") or user_cache_dir("ablate")) / name


def anonymous_file() -> IO[bytes]:
    """Return a new file that is deleted when it is closed, in the cache if that is writable."""
    try:
        folder = cache_folder("scratch")
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


def sealed(content: str) -> str:
    """Return ``content`` below a line with its hash."""
    return f"{sha256_of_text(content)}\n{content}"


def unsealed(entry: str) -> str:
    """Return what was sealed; a DataError if it has been damaged or edited since."""
    checksum, _, content = entry.partition("\n")
    if checksum != sha256_of_text(content):
        raise DataError("a damaged cache entry")
    return content


def cached(path: Path, compute: Callable[[], str]) -> str:
    """Return the text of a cache entry, which is computed if it is missing or damaged.

    Without a writable cache it is computed every time.
    """
    with suppress(OSError, UnicodeDecodeError, DataError):
        return unsealed(path.read_text(encoding="utf-8"))
    content = compute()
    with suppress(OSError):
        write_whole(path, sealed(content))
    return content
