"""The page on speed is written from the records of benchmarks, not by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import speed_page  # noqa: E402
from peers.race import ONE_AT_A_TIME  # noqa: E402


def test_it_is_what_its_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["speed_page.py", "--output", str(tmp_path / "speed.md")])
    speed_page.main()
    written = (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert written == (ROOT / "docs" / "speed.md").read_text(encoding="utf-8"), (
        "write it anew: python benchmarks/speed_page.py"
    )


def entry(name: str, rate: float | None, error: str | None = None) -> dict[str, Any]:
    """Return a contender of a record, as fast as ours if it was measured."""
    is_measured = rate is not None
    return {
        "name": name,
        "what": "a program",
        "median_target_tokens_per_second": rate,
        "ours_over_it": {"median": 1.0, "lowest": 1.0, "highest": 1.0} if is_measured else None,
        "error": error,
        "rounds": [{"target_tokens_per_second": rate}] if is_measured else [],
    }


def table_of(device: str, *entries: dict[str, Any]) -> list[str]:
    record = {
        "hardware": {"device": device},
        "processes": ONE_AT_A_TIME,
        "settings": {},
        "contenders": entries,
    }
    return list(speed_page.race(record, "target tokens/s"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_contender_that_failed_has_the_last_line_of_its_error(device: str) -> None:
    error = "ended with status 1: Traceback\n  File x\nValueError: 3 | 4"
    lines = table_of(device, entry("ours", 10.0), entry("marian_fp32", None, error))
    assert len(lines) == 4
    assert "not measured: ValueError: 3 \\| 4 |" in lines[-1]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_without_ours_nothing_is_compared() -> None:
    failed, other = entry("ours", None, "no memory"), entry("marian_fp32", 10.0)
    other["ours_over_it"] = None
    lines = table_of("cpu", failed, entry("ours_fp32", None, "no memory"), other)
    assert lines[2] == "| ours | a program | not measured: no memory |"
    assert lines[-1] == "| marian_fp32 | a program | no round beside ours |"
