"""Classification of exceptions and exit statuses: lack of memory, engine or other."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from typing import Literal

import torch

from ablate.errors import (
    AblateError,
    DivergedError,
    EngineError,
    KilledError,
    RunError,
    first_line,
    first_line_with_type,
)

Failure = Literal["memory", "killed", "engine", "process_lost", "stalled", "other"]
"""Why a task left no result:

``memory``        the process or the device ran out of memory
``killed``        signal 9, which Linux sends when memory is short, and users may send
``engine``        the engine failed
``process_lost``  another task of the same process failed and ended it, or the machine is lost
``stalled``       its process had stopped working, and was killed
``other``         anything else
"""

_OUT_OF_MEMORY = (
    "can't allocate memory",  # PyTorch, c10/core/impl/alloc_cpu.cpp
    "not enough memory",  # the same on Windows
    "Cannot allocate memory",  # the C library's message for ENOMEM, inside other messages
    "CUDA error: out of memory",  # of the driver, for memory not from PyTorch's allocator
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""Parts of messages of a `RuntimeError`: PyTorch has no type for most kinds of lack of memory."""

_ABORT_MESSAGES = ("std::bad_alloc", "memory allocation of")
"""Parts of what C++ and Rust print before they abort a process for lack of memory."""


class RankLostError(RunError):
    """Another rank of the run has ended early.

    Args:
        reason: how, in words for the table.
        failure: what kind of failure that was.
    """

    def __init__(self, reason: str, failure: Failure) -> None:
        super().__init__(reason)
        self.failure = failure


def failure_of(error: BaseException) -> Failure:
    """Return what kind of failure an exception is.

    Lack of memory is looked for first, in the causes of the exception too: a capture that ran out
    of memory raises an `EngineError`, and would succeed with more memory.
    """
    if isinstance(error, RankLostError):
        return error.failure
    if any(isinstance(each, KilledError) for each in _chain(error)):
        return "killed"
    if any(_is_out_of_memory(each) for each in _chain(error)):
        return "memory"
    if isinstance(error, EngineError):
        return "engine" if error.is_own else "process_lost"
    return "other"


def failure_of_exit(status: int, log: str) -> Failure:
    """Return what kind of failure ended a process.

    Args:
        status: its exit status; less than 0 if a signal has killed it.
        log: what it has printed.
    """
    if -status == signal.SIGKILL:
        return "killed"
    if -status == signal.SIGABRT and any(text in log for text in _ABORT_MESSAGES):
        return "memory"
    return "other"


def status_of(error: BaseException) -> str:
    """Return the status of a run that ended with an exception, as records have it."""
    if isinstance(error, DivergedError):
        return "diverged"
    return "oom" if failure_of(error) in ("memory", "killed") else "failed"


def reason_of(error: BaseException) -> str:
    """Return an exception in one line, with its type unless the type is one of this package."""
    return first_line(error) if isinstance(error, AblateError) else first_line_with_type(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)
