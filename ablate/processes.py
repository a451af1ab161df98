"""Child processes: their end, their stacks; waits; memory that is given back."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PAUSE_S = 0.001
_STACK_S = 0.1  # that a process has for its stack
STACK_SIGNAL = signal.SIGUSR1
"""Makes a process of a worker print its Python stack. Slurm sends SIGUSR2 and SIGTERM."""


def die_with_parent(parent: int | None = None) -> None:
    """Make Linux kill this process when its parent ends, or has ended; forks do not inherit it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def die_with_writer() -> None:
    """Call `die_with_parent`, for a process whose parent writes to its standard input."""
    die_with_parent()
    if sys.platform == "linux":
        poll = select.poll()
        poll.register(sys.stdin.fileno(), select.POLLHUP)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(1)


@contextmanager
def signal_blocked(number: signal.Signals) -> Iterator[None]:
    """Block a signal for this thread; processes started in the block inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on; none unless on Linux."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            for child in map(int, file.read_text(encoding="ascii").split()):
                found += [child, *descendants(child)]
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and, on Linux, its descendants, of which a stopped one would hold locks."""
    for each in (pid, *descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def print_stacks_on_signal() -> None:
    """Print the Python stacks of all threads on standard error at every `STACK_SIGNAL`."""
    faulthandler.register(STACK_SIGNAL, file=2)


def request_stacks(pid: int) -> None:
    """Send `STACK_SIGNAL` to a process and its descendants, if they print their stacks; on Linux.

    One after another: ranks share a log, and stacks are written piece by piece.
    """
    for each in (pid, *descendants(pid)):
        with suppress(OSError, KeyError):  # it has ended
            lines = Path(f"/proc/{each}/status").read_text(encoding="utf-8").splitlines()
            status = dict(line.split(":", 1) for line in lines)
            if int(status["SigCgt"], 16) >> (STACK_SIGNAL - 1) & 1:
                os.kill(each, STACK_SIGNAL)
                time.sleep(_STACK_S)


def is_true_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether ``condition``, called every millisecond, returns True within some seconds."""
    until = time.monotonic() + seconds
    while not (is_true := condition()) and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    return is_true


def exit_reason(status: int) -> str:
    """Return in words how a process ended; its status is less than 0 if a signal has killed it."""
    if status >= 0:
        return f"exit status {status}"
    guess = " (out of memory?)" if -status == signal.SIGKILL else ""
    return f"killed by signal {-status}{guess}"


def give_back_free_memory() -> None:
    """Return memory to the system that was freed and that the C library holds for reuse."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
        if trim is not None:
            trim(0)
