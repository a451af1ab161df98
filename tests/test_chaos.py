"""A round of chaos leaves the table that an undisturbed experiment has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import faults
import pytest

CHAOS = Path(__file__).parents[1] / "benchmarks" / "chaos.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["SIGKILL to the group", "SIGSTOP to the fork"])
def test_nothing_is_lost_when_processes_are_killed_or_stopped(kind: str) -> None:
    """One round of a kind: each takes three calls of `ablate run`."""
    first = str(faults.KINDS.index(kind))
    command = [sys.executable, str(CHAOS), "--rounds", "1", "--first", first]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"1  {kind}" in done.stdout
    assert "0 losses, 0 orphans" in done.stdout
