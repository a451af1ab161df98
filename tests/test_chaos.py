"""A round of chaos leaves the table that an undisturbed experiment has."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

CHAOS = Path(__file__).parents[1] / "benchmarks" / "chaos.py"
sys.path.insert(0, str(CHAOS.parent))

import chaos  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


class EndedCall:
    """A call that has failed, and has left a process behind."""

    status = 1
    orphans: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, folder: Path, mark: str, number: int) -> None:
        self.output = folder / f"call {number}.txt"
        self.output.write_text("Traceback", encoding="utf-8")
        environment = {**os.environ, chaos.MARK: mark}
        orphan = subprocess.Popen(["sleep", "60"], env=environment)
        self.orphans.append(orphan)
        while orphan.pid not in chaos.processes_of(mark):  # Linux shows it a little later
            time.sleep(0.001)

    def wait(self) -> bool:
        return True

    def has_ended(self) -> bool:
        return True


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[chaos._Play]:
    """Yield a round whose calls leave processes behind."""
    monkeypatch.setattr(chaos, "Call", EndedCall)
    monkeypatch.setattr(chaos, "DIES_WITHIN_S", 0.0)
    yield chaos._Play(tmp_path, (), random.Random(1), chaos.Round(), 0.0, False)
    while EndedCall.orphans:
        orphan = EndedCall.orphans.pop()
        orphan.kill()
        orphan.wait()


def test_orphans_of_the_last_call_are_counted(play: chaos._Play) -> None:
    play.all([])
    assert play.result.n_orphans == 1
    assert play.result.losses == ["call 1.txt has a traceback", "the last call ended with 1"]


@pytest.mark.parametrize("seed", [0, 4])
def test_a_traceback_is_listed_once(play: chaos._Play, seed: int) -> None:
    play.rng.seed(seed)
    play._damage("files garbled")
    assert play.result.losses == ["call 1.txt has a traceback"]


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["SIGKILL to the group", "SIGSTOP to the fork"])
def test_nothing_is_lost_when_processes_are_killed_or_stopped(kind: str) -> None:
    """One round of a kind: each takes three calls of `ablate run`."""
    first = str(chaos.KINDS.index(kind))
    command = [sys.executable, str(CHAOS), "--rounds", "1", "--first", first]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"1  {kind}" in done.stdout
    assert "0 losses, 0 orphans" in done.stdout
