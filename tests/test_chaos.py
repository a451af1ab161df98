"""A round of chaos of each sort leaves the table that an undisturbed experiment has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[1] / "benchmarks" / "chaos.py"


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_nothing_is_lost_in_two_rounds() -> None:
    """A process group killed, and files garbled: rounds 8 and 13."""
    for first in ("8", "13"):
        done = subprocess.run(
            [sys.executable, str(CHAOS), "--rounds", "1", "--first", first],
            capture_output=True,
            text=True,
            env=None,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 rounds" in done.stdout
        assert "0 losses, 0 orphans" in done.stdout
