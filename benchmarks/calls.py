"""A call of ``ablate run`` for `chaos.py`, and the processes that it has."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ablate.cli import main
from ablate.processes import die_with_parent

MARK = "ABLATE_CHAOS"
"""A variable of the environment that marks the processes of a round."""

HANGS_AFTER_S = 240.0
TARGETS = ("call", "worker", "fork", "grad worker", "group")


class Call:
    """A call of ``ablate run``, in a process group of its own.

    Args:
        folder: where the experiment lies, and the folder of results.
        mark: of the round.
        number: of the call.
        options: of the command.
    """

    def __init__(self, folder: Path, mark: str, number: int, *options: str) -> None:
        self.output = folder / f"call {number}.txt"
        self.pid = os.fork()
        if self.pid == 0:
            _run_call(folder, mark, self.output, options)
        self.status: int | None = None

    def has_ended(self) -> bool:
        """Return whether the call has ended, and set its status."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def wait(self, seconds: float = HANGS_AFTER_S) -> bool:
        """Wait for the end; return whether it came in time, and kill the call otherwise."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.status = -signal.SIGKILL
                return False
            time.sleep(0.02)
        return True

    def processes(self, target: str) -> list[int]:
        """Return the processes of one kind that the call has at this moment.

        A worker is one once it is a program of its own: until then the call that starts it is
        inside of a system call, where SIGSTOP to the worker stops the call, too.
        """
        level = [self.pid]
        for name in TARGETS[:-1]:
            if name == "worker":
                level = [pid for pid in level if _command(pid) != _command(self.pid)]
            if name == target:
                return level
            level = [child for pid in level for child in _children(pid)]
        return []


def processes_of(mark: str) -> list[int]:
    """Return the living processes that a round has started."""
    variable, alive = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                alive.append(int(folder.name))
    return alive


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def _run_call(folder: Path, mark: str, output: Path, options: tuple[str, ...]) -> NoReturn:
    """Become ``ablate run`` in a fork, which saves the seconds of its imports."""
    status = 1
    try:
        die_with_parent()
        os.setsid()
        os.chdir(folder)
        os.environ[MARK] = mark
        with output.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.argv = ["ablate", "run", "chaos.yaml", "--device", "cpu", "--no-figures", *options]
        main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
