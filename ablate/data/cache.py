"""The user's cache: where what can be made or had again is kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO

from platformdirs import user_cache_dir

from ablate.errors import DataError


def cache_folder(name: str) -> Path:
    """Return the folder for one kind of thing; ``$ABLATE_CACHE`` moves the whole cache."""
    return Path(os.environ.get("ABLATE_CACHE") or user_cache_dir("ablate")) / name


def nameless() -> IO[bytes]:
    """Return a new file that goes when it is closed, in the cache if that can be written.

    Raises:
        OSError: if it can be nowhere.
    """
    try:
        folder = cache_folder("scratch")
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


def sealed(content: str) -> str:
    """Return ``content`` with a first line that tells whether it is whole."""
    return f"{_sha256(content)}\n{content}"


def unsealed(entry: str) -> str:
    """Return what was sealed.

    Raises:
        DataError: if it has been damaged or edited since.
    """
    claimed, _, content = entry.partition("\n")
    if claimed != _sha256(content):
        raise DataError("a damaged cache entry")
    return content


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
