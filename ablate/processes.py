"""Child processes that end with their parent, how they ended; waits; memory that is given back."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_PAUSE_S = 0.001


def die_with_parent(parent: int | None = None) -> None:
    """Make Linux kill this process when its parent ends in any way; forks do not inherit this.

    Args:
        parent: the id of the parent. If it has ended before this call, this process ends at once;
            without the id that goes unnoticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def die_with_writer() -> None:
    """Call `die_with_parent`, for a process whose parent writes to its standard input.

    If that pipe is closed already, the process ends at once.
    """
    die_with_parent()
    if sys.platform == "linux":
        poll = select.poll()
        poll.register(sys.stdin.fileno(), select.POLLHUP)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(1)


@contextmanager
def signal_blocked(number: signal.Signals) -> Iterator[None]:
    """Block a signal for this thread while the block lasts; processes started in it inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_true_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether ``condition`` returns True within some seconds.

    It is called every millisecond or so, because it may give the other runs of a process their
    turns: each of these makes one step from call to call.
    """
    until = time.monotonic() + seconds
    while not (is_true := condition()) and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    return is_true


def exit_reason(status: int) -> str:
    """Return in words how a process ended.

    Args:
        status: its exit status; less than 0 if a signal has killed it.
    """
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
