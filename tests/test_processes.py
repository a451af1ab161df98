"""Processes that are killed with what they have started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ablate.processes import descendants, kill_tree

STOPPED = """
import os, signal, time
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
print("ready", flush=True)
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_descendant_is_killed_too() -> None:
    """It has not asked to end with its parent, and would hold the locks of both."""
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (child,) = descendants(process.pid)
        kill_tree(process.pid)
        process.wait()
        deadline = time.monotonic() + 10
        while is_alive(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_alive(child)
