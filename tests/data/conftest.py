"""A folder with a small text, and nothing of the user's own.

No test reads or writes the user's cache, corpora or network unless it sets them itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.server import Site, serving


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an empty cache, no corpora, and a mirror that does not answer."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ABLATE_MIRROR", "http://127.0.0.1:9")  # the discard port
    monkeypatch.delenv("ABLATE_CORPORA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Let a local server stand for the whole internet."""
    with serving() as site:
        monkeypatch.setenv("ABLATE_MIRROR", site.url)
        yield site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write training pairs of 1 to 9 words, one of them long on one side, and long tests."""
    words = " ".join("abcdefghijklmnop")
    src = [words[: 2 * n - 1] for n in range(1, 10)] + [words]
    tgt = [words[: 2 * n - 1].upper() for n in range(1, 10)] + ["A"]
    for split, sides in {
        "train": (src, tgt),
        "dev": ([words, "a"], ["A", words.upper()]),
        "news": (["b", words], ["B", "C"]),
    }.items():
        for language, lines in zip(("en", "de"), sides, strict=True):
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return tmp_path
