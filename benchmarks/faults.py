"""The faults of a round of `chaos.py`, each at a random moment of a call of ``ablate run``."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import records
from calls import TARGETS, Call, processes_of

DIES_WITHIN_S = 2.0
DISK_MIB = 16
STOPPED_S = 25.0  # of a call or a group, longer than a worker may be silent
CONTINUED = ("call", "group")
SIGNALS = ("KILL", "TERM")
KINDS = (
    *(f"SIG{name} to the {target}" for target in TARGETS for name in SIGNALS),
    "SIGINT to the group",
    "full disk",
    "files cut short",
    "files garbled",
    "second call",
    "third call",
    *(f"SIGSTOP to the {target}" for target in TARGETS),
)


@dataclass
class Round:
    """The result of a round.

    Attributes:
        faults: how many of each kind reached their target.
        losses: the failures, in sentences.
        n_orphans: processes that outlived the call that started them.
        n_calls: of ``ablate run``.
    """

    faults: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    n_orphans: int = 0
    n_calls: int = 0


class Play:
    """The calls of one round."""

    def __init__(
        self,
        folder: Path,
        options: tuple[str, ...],
        rng: random.Random,
        result: Round,
        seconds: float,
        can_mount: bool,
    ) -> None:
        self.folder, self.options, self.rng, self.result = folder, options, rng, result
        self.seconds = seconds * (1 if "--no-probe" in options else 2.5)
        self.can_mount = can_mount
        self.mark = f"{os.getpid()}-{folder.name}"
        self.finished: dict[str, str] = {}
        self.damaged: set[str] = set()  # runs that have lost a file, and may be made again

    def all(self, kinds: list[str]) -> None:
        """Make a call with each kind of fault, then one with none."""
        for kind in kinds:
            self._note_finished()
            self._play(kind)
        self._note_finished()
        call = self._call()
        self._end(call)
        if call.status != 0:
            self.result.losses.append(f"the last call ended with {call.status}")
        for name, finished in self.finished.items():
            if name not in self.damaged and self._finished().get(name) != finished:
                self.result.losses.append(f"{name} was finished, and has been made again")

    def _play(self, kind: str) -> None:
        if kind.startswith("SIG") or (kind == "full disk" and not self.can_mount):
            self._send(kind)
        elif kind == "full disk":
            self._fill(kind)
        elif kind.startswith("files"):
            self._damage(kind)
        else:
            self._call_again(kind)

    def _call(self) -> Call:
        self.result.n_calls += 1
        return Call(self.folder, self.mark, self.result.n_calls, *self.options)

    def _sleep(self, call: Call) -> None:
        """Wait until a random moment of the call."""
        deadline = time.monotonic() + self.rng.uniform(0, self.seconds)
        while time.monotonic() < deadline and not call.has_ended():
            time.sleep(0.01)

    def _end(self, call: Call) -> None:
        """Wait until the call and all processes that it has started have ended."""
        if not call.wait():
            self.result.losses.append(f"call {self.result.n_calls} hangs")
        deadline = time.monotonic() + DIES_WITHIN_S
        while (alive := processes_of(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.result.n_orphans += len(alive)
        for pid in alive:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            records.say(f"round {self.folder.name}: {pid} is an orphan: {name}")
            os.kill(pid, signal.SIGKILL)
        self._check_output(call)

    def _check_output(self, call: Call) -> None:
        loss = f"{call.output.name} has a traceback"
        if loss in self.result.losses:  # the call has been ended before
            return
        if "Traceback" in call.output.read_text(encoding="utf-8", errors="replace"):
            self.result.losses.append(loss)

    def _send(self, kind: str) -> None:
        """Send a signal to a process of a call."""
        name, _, target = kind.partition(" to the ")
        if kind == "full disk":
            name, target = "SIGKILL", "call"
        call = self._call()
        self._sleep(call)
        number = signal.Signals[name]
        deadline = time.monotonic() + self.seconds
        while not call.has_ended() and time.monotonic() < deadline:
            pids = call.processes("call" if target == "group" else target)
            if pids:
                with suppress(ProcessLookupError):
                    self._signal(call, target, number, pids)
                    self.result.faults[f"{name} to the {target}"] += 1
                break
            time.sleep(0.002)
        is_continued = number == signal.SIGSTOP and target in CONTINUED
        if is_continued:
            time.sleep(STOPPED_S)
            with suppress(ProcessLookupError):
                self._signal(call, target, signal.SIGCONT, [call.pid])
        self._end(call)
        if is_continued and "its process was killed" in call.output.read_text(encoding="utf-8"):
            self.result.losses.append(f"{call.output.name}: a worker was killed in vain")

    def _signal(self, call: Call, target: str, number: signal.Signals, pids: list[int]) -> None:
        if target == "group":
            os.killpg(call.pid, number)
        else:
            os.kill(self.rng.choice(pids), number)

    def _fill(self, kind: str) -> None:
        """Fill the disk at a random moment, and make room again when the call has ended."""
        call, ballast = self._call(), self.folder / "results" / "ballast"
        self._sleep(call)
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        self.result.faults[kind] += not call.has_ended()
        self._end(call)
        ballast.unlink()

    def _damage(self, kind: str) -> None:
        """Damage files, half of the time in the middle of a call, else between calls."""
        call = self._call()
        self._sleep(call)
        if self.rng.random() < 0.5:
            self._end(call)
        files = [path for path in (self.folder / "results").rglob("*") if path.is_file()]
        for path in self.rng.sample(sorted(files), min(len(files), self.rng.randint(1, 4))):
            with suppress(OSError):
                _damage_file(path, self.rng, is_cut=kind == "files cut short")
                same = (file for file in files if file.exists() and file.samefile(path))
                self.damaged |= {file.parent.name for file in same}  # weights are hard links
                self.result.faults[kind] += 1
        self._end(call)

    def _call_again(self, kind: str) -> None:
        """Make further calls at random moments."""
        calls = [self._call()]
        for _ in range(1 if kind == "second call" else 2):
            self._sleep(calls[0])
            self.result.faults[kind] += any(not call.has_ended() for call in calls)
            calls.append(self._call())
        for call in calls:
            if not call.wait():
                self.result.losses.append(f"one of {len(calls)} calls hangs")
        for call in calls:
            self._end(call)

    def _finished(self) -> dict[str, str]:
        ended = {}
        for file in (self.folder / "results" / "runs").glob("*/record.json"):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                record = json.loads(file.read_bytes())
                if record["status"] == "done":
                    ended[file.parent.name] = record["finished"]
        return ended

    def _note_finished(self) -> None:
        """Note which runs are finished."""
        self.finished |= {k: v for k, v in self._finished().items() if k not in self.finished}


def can_mount(root: Path) -> bool:
    """Return whether a small disk can be mounted, which needs root."""
    folder = root / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
    except FileNotFoundError:
        return False
    subprocess.run(["umount", str(folder)], check=True)
    return True


@contextmanager
def small_disk(folder: Path, *, is_mounted: bool) -> Iterator[None]:
    """Mount a small tmpfs on a folder, or do nothing."""
    if not is_mounted:
        yield
        return
    size = f"size={DISK_MIB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _damage_file(path: Path, rng: random.Random, *, is_cut: bool) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        if is_cut:
            file.truncate(rng.randint(0, max(0, size - 1)))
            return
        for _ in range(rng.randint(1, 8)):
            file.seek(rng.randint(0, max(0, size - 1)))
            file.write(bytes([rng.randrange(256)]))
