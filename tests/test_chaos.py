"""A round of chaos leaves the table that an undisturbed experiment has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[1] / "benchmarks" / "chaos.py"


@pytest.mark.chaos
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_nothing_is_lost_when_all_processes_are_killed() -> None:
    """One round, that of SIGKILL to the process group: each takes three calls of `ablate run`."""
    command = [sys.executable, str(CHAOS), "--rounds", "1", "--first", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1  SIGKILL to the group" in done.stdout
    assert "0 losses, 0 orphans" in done.stdout
