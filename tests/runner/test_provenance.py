"""Whether a stored run was made by the present code, libraries and machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ablate.runner import provenance
from ablate.runner.devices import Device


@pytest.fixture
def made_here() -> dict[str, Any]:
    return {
        "git": {"commit": "abc", "is_clean": True, "code": provenance.code_digest()},
        "versions": provenance.versions(),
        "hardware": provenance.hardware("cpu"),
    }


def test_an_installed_package_names_the_commit_that_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path)
    git = provenance.git.__wrapped__  # without its cache
    assert git() == {"commit": None, "is_clean": None}
    built = {"commit": "9839b24aa1bb", "is_clean": True}
    (tmp_path / "commit.json").write_text(json.dumps(built), encoding="utf-8")
    assert git() == built


def test_code_in_a_repository_names_its_commit_and_whether_it_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the files of the package alone."""

    def run_git(*words: str) -> str:
        own = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *own, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "version.py").touch()
    for words in (["init"], ["add", "."], ["commit", "--message", "first"]):
        run_git(*words)
    monkeypatch.setattr(provenance, "_PACKAGE", package)
    (tmp_path / "notes").touch()
    git = provenance.git.__wrapped__  # without its cache
    assert git() == {"commit": run_git("rev-parse", "HEAD"), "is_clean": True}
    (package / "new.py").touch()
    assert not git()["is_clean"]


def test_a_record_of_this_code_and_machine_is_ours(made_here: dict[str, Any]) -> None:
    assert provenance.stale_reason(made_here, Device("cpu")) is None
    assert provenance.stale_reason({**made_here, "git": None}, Device("cpu")) is not None
    assert provenance.stale_reason(json.loads(json.dumps(made_here)), Device("cpu")) is None


@pytest.mark.parametrize(
    ("key", "changes", "why"),
    [
        ("git", {"code": "other"}, "the code has changed since"),
        ("git", {"code": None}, "the code has changed since"),
        ("versions", {"torch": "1.0"}, "it was made with torch 1.0, and here is"),
        ("versions", {"cuda": "12.8"}, "it was made with cuda 12.8, and here is None"),
        ("hardware", {"cpu": "Abacus 9"}, "it was made on Abacus 9, and here is"),
        ("hardware", {"device_name": "G1"}, "it was made on G1, and here is"),
        ("hardware", {"cpu_kind": "model 1"}, "it was made on model 1, and here is"),
    ],
)
def test_a_record_of_other_code_libraries_or_hardware_is_not(
    made_here: dict[str, Any], key: str, changes: dict[str, Any], why: str
) -> None:
    record = {**made_here, key: {**made_here[key], **changes}}
    message = provenance.stale_reason(record, Device("cpu"))
    assert message is not None
    assert message.startswith(why)


def test_the_fingerprint_of_the_code_moves_with_any_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "norm.py").write_text("EPS = 1e-5\n", encoding="utf-8")
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path)

    def fingerprint() -> str:
        provenance.code_digest.cache_clear()
        return provenance.code_digest()

    try:
        first = fingerprint()
        (tmp_path / "notes.txt").write_text("no code", encoding="utf-8")
        assert fingerprint() == first
        (tmp_path / "parts" / "norm.py").write_text("EPS = 1e-6\n", encoding="utf-8")
        assert fingerprint() != first
    finally:
        provenance.code_digest.cache_clear()
