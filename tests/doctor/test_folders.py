"""Corpora, cache, disk and locks, where they are and where they are not."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablate.doctor import environment
from ablate.doctor.results import Target

GIB = 2**30


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ABLATE_CORPORA", raising=False)


def test_corpora_are_available_or_to_be_fetched(
    monkeypatch: pytest.MonkeyPatch, target: Target, tmp_path: Path
) -> None:
    result = environment.corpora(target)
    assert result.outcome == "ok"
    assert result.figures["available"] == "synthetic"
    assert "multi30k" in str(result.figures["to_fetch"])
    assert "files" not in result.sentence
    monkeypatch.setenv("ABLATE_CORPORA", str(tmp_path / "nowhere"))
    result = environment.corpora(target)
    assert result.outcome == "broken"
    assert "ABLATE_CORPORA" in result.sentence


def test_the_cache_is_counted(target: Target, tmp_path: Path) -> None:
    entry = tmp_path / "cache" / "encodings" / "abc"
    entry.mkdir(parents=True)
    (entry / "ids.npy").write_bytes(bytes(3 * 2**20))
    result = environment.cache(target)
    assert result.outcome == "ok"
    assert result.figures == {"encoded_corpora": 1, "size_mib": 3.0}
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file, so that nothing can be written there")
    result = environment.cache(target)
    assert result.outcome == "warning"
    assert "set ABLATE_CACHE" in result.sentence


@pytest.mark.parametrize(
    ("free_gib", "outcome"), [(100, "ok"), (5.1, "ok"), (4.9, "warning"), (0.2, "broken")]
)
def test_room_on_disk(
    monkeypatch: pytest.MonkeyPatch, target: Target, free_gib: float, outcome: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_gib * GIB))
    result = environment.disk(target)
    assert result.outcome == outcome
    assert result.figures["results_free_gib"] == free_gib


def test_a_lock_holds_and_nothing_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    assert not target.results.exists()
    result = environment.locks(target)
    assert result.outcome == "ok", result.sentence
    assert list(target.results.parent.iterdir()) == []
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # as on file systems without locks
    result = environment.locks(target)
    assert result.outcome == "broken"
    assert "two of them would make the same run" in result.sentence


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks(
    monkeypatch: pytest.MonkeyPatch, target: Target, number: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    result = environment.locks(target)
    assert result.outcome == "broken"
    assert f"{os.strerror(number)}; name another folder with --results" in result.sentence
    assert list(target.results.parent.iterdir()) == []
