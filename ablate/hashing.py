"""SHA-256 of bytes, files and sequences of strings, in hexadecimal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def sha256(pieces: Iterable[bytes]) -> str:
    """Return the hash of ``pieces``, one after the other."""
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_text(text: str) -> str:
    """Return the hash of a text in UTF-8."""
    return sha256([text.encode()])


def digest(parts: Iterable[str]) -> str:
    """Return the hash of a sequence of strings; no two sequences share one."""
    contents = (part.encode() for part in parts)
    return sha256(len(content).to_bytes(8, "big") + content for content in contents)
