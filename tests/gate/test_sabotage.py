"""The sabotages of the gate change what they say they change."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def sabotages(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    sabotages: tuple[Any, ...] = runpy.run_path(str(BENCHMARKS / "sabotage.py"))["SABOTAGES"]
    return sabotages


def test_every_sabotage_finds_its_line_once(sabotages: tuple[Any, ...]) -> None:
    """A line that has moved would be noticed only when the whole gate is run."""
    package = BENCHMARKS.parent / "ablate"
    counts = {
        s.name: (package / s.file).read_text(encoding="utf-8").count(s.old) for s in sabotages
    }
    assert counts.pop("nothing") > 1
    assert counts
    assert set(counts.values()) == {1}
