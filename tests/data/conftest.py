"""No test reads or writes the user's cache, corpora or network unless it sets them itself."""

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
