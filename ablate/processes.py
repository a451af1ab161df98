"""The life of child processes, and the memory of this one."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Make Linux kill this process when its parent ends in any way; forks do not inherit it.

    Args:
        parent: the process that made this one; if it has ended before this call, the process
            ends at once. By default that is not known.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def die_with_writer() -> None:
    """Do as `die_with_parent` for a process whose parent writes to its standard input.

    If that pipe has been closed before, the process ends at once.
    """
    die_with_parent()
    if sys.platform == "linux":
        poll = select.poll()
        poll.register(sys.stdin.fileno(), select.POLLHUP)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(1)


def give_back_free_memory() -> None:
    """Return to the system what was freed and what the C library keeps for the next allocation."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
        if trim is not None:
            trim(0)
