"""The page on speed is written from the records of benchmarks, not by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import speed_page

ROOT = Path(__file__).parents[1]


def test_it_is_what_its_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["speed_page.py", "--output", str(tmp_path / "speed.md")])
    speed_page.main()
    written = (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert written == (ROOT / "docs" / "speed.md").read_text(encoding="utf-8"), (
        "write it anew: python benchmarks/speed_page.py"
    )
