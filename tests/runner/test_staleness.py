"""Whether a stored run was made by the present code, libraries and machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ablate.runner import provenance, staleness
from ablate.runner.devices import Device


@pytest.fixture
def made_here() -> dict[str, Any]:
    return {
        "git": {"commit": "abc", "is_clean": True, "code": staleness.code_digest()},
        "versions": provenance.versions(),
        "hardware": provenance.hardware("cpu"),
    }


def test_a_record_of_this_code_and_machine_is_ours(made_here: dict[str, Any]) -> None:
    assert staleness.stale_reason(made_here, Device("cpu")) is None
    assert staleness.stale_reason(json.loads(json.dumps(made_here)), Device("cpu")) is None


@pytest.mark.parametrize(
    ("key", "changes", "why"),
    [
        ("git", {"code": "other"}, "the code has changed since"),
        ("versions", {"torch": "1.0"}, "it was made with torch 1.0, and here is"),
        ("versions", {"cuda": "12.8"}, "it was made with cuda 12.8, and here is None"),
        ("hardware", {"cpu": "Abacus 9"}, "it was made on Abacus 9, and here is"),
    ],
)
def test_a_record_of_other_code_libraries_or_hardware_is_not(
    made_here: dict[str, Any], key: str, changes: dict[str, Any], why: str
) -> None:
    record = {**made_here, key: {**made_here[key], **changes}}
    message = staleness.stale_reason(record, Device("cpu"))
    assert message is not None
    assert message.startswith(why)


@pytest.mark.parametrize(
    ("past", "present", "why"),
    [
        ({"commit": None, "is_clean": None}, {"commit": None, "is_clean": None}, None),
        ({"commit": "abc", "is_clean": True}, {"commit": None, "is_clean": None}, "not from a che"),
        ({"commit": "abc", "is_clean": False}, {"commit": "abc", "is_clean": True}, "were not com"),
        ({"commit": "abc", "is_clean": True}, {"commit": "abc", "is_clean": False}, "not committ"),
        ({"commit": "abc", "is_clean": True}, {"commit": "def", "is_clean": True}, "which differs"),
        ({"commit": "HEAD", "is_clean": True}, {"commit": "HEAD", "is_clean": True}, None),
    ],
)
def test_without_a_fingerprint_of_the_code_its_commit_must_do(
    made_here: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    past: dict[str, Any],
    present: dict[str, Any],
    why: str | None,
) -> None:
    monkeypatch.setattr(provenance, "git", lambda: present)
    monkeypatch.setattr(staleness, "_differs", lambda commit: commit != "HEAD")
    message = staleness.stale_reason({**made_here, "git": past}, Device("cpu"))
    assert (message is None) == (why is None)
    assert why is None or why in str(message)


def test_the_fingerprint_of_the_code_moves_with_any_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "norm.py").write_text("EPS = 1e-5\n", encoding="utf-8")
    monkeypatch.setattr(staleness, "_PACKAGE", tmp_path)

    def fingerprint() -> str:
        staleness.code_digest.cache_clear()
        return staleness.code_digest()

    try:
        first = fingerprint()
        (tmp_path / "notes.txt").write_text("no code", encoding="utf-8")
        assert fingerprint() == first
        (tmp_path / "parts" / "norm.py").write_text("EPS = 1e-6\n", encoding="utf-8")
        assert fingerprint() != first
    finally:
        staleness.code_digest.cache_clear()
