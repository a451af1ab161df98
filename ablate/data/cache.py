"""The user's cache: where what can be made or had again is kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from platformdirs import user_cache_dir


def cache_folder(name: str) -> Path:
    """Return the folder for one kind of thing; ``$ABLATE_CACHE`` moves the whole cache."""
    return Path(os.environ.get("ABLATE_CACHE") or user_cache_dir("ablate")) / name


def write_whole(path: Path, content: str) -> None:
    """Write a text file so that others see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
