"""Which exceptions and exit statuses are lack of memory, and which are not."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from ablate.errors import DataError, DivergedError, EngineError
from ablate.runner.failures import failure_of, failure_of_exit, reason_of, status_of

ALLOCATOR = "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate"


def _from(error: Exception, cause: BaseException) -> Exception:
    """Return an error as it is after ``raise error from cause``."""
    error.__cause__ = cause
    return error


def _while(error: Exception, context: BaseException) -> Exception:
    """Return an error as it is when it is raised while another one is handled."""
    error.__context__ = context
    return error


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
CASES = [
    (MemoryError(), "memory", "oom"),
    (FULL, "memory", "oom"),
    (RuntimeError(f"{ALLOCATOR} memory: you tried to allocate 8 bytes."), "memory", "oom"),
    (RuntimeError("CUDA error: out of memory\nCompile with"), "memory", "oom"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"), "memory", "oom"),
    (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory", "oom"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "other", "failed"),
    (RuntimeError("The size of tensor a (3) must match"), "other", "failed"),
    (ValueError("Cannot allocate memory"), "other", "failed"),
    (DataError("no network"), "other", "failed"),
    (DivergedError("the loss of step 3 is nan"), "other", "diverged"),
    (EngineError("could not be captured"), "engine", "failed"),
    (EngineError("another run failed", is_own=False), "process_lost", "failed"),
    (_from(EngineError("could not be captured"), ValueError("shape")), "engine", "failed"),
    # A capture that ran out of memory is not one that cannot be made
    (_from(EngineError("could not be captured"), FULL), "memory", "oom"),
    (_from(EngineError("x"), _while(RuntimeError("capture failed"), FULL)), "memory", "oom"),
    (_while(RuntimeError("operation failed due to a previous error"), FULL), "memory", "oom"),
]


@pytest.mark.parametrize(("error", "failure", "status"), CASES)
def test_the_kind_of_an_exception(error: Exception, failure: str, status: str) -> None:
    assert (failure_of(error), status_of(error)) == (failure, status)


def test_real_allocations_that_fail_are_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(2**60, dtype=torch.uint8)
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(2**60, dtype=np.uint8)
    with pytest.raises(MemoryError) as of_python:
        bytes(2**60)
    assert [failure_of(each.value) for each in (of_torch, of_numpy, of_python)] == ["memory"] * 3


@pytest.mark.parametrize(
    ("status", "log", "failure"),
    [
        (-9, "", "killed"),
        (-15, "", "other"),
        (1, "MemoryError", "other"),  # it would have said so itself
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
        (-6, "memory allocation of 4096 bytes failed", "memory"),
        (-6, "pure virtual method called", "other"),
    ],
)
def test_the_kind_of_an_exit(status: int, log: str, failure: str) -> None:
    assert failure_of_exit(status, log) == failure


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are kept there")
def test_memory_that_a_limit_refuses_is_lack_of_memory() -> None:
    code = (
        "import resource, torch\n"
        "from ablate.runner.failures import failure_of\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))\n"
        "try:\n    torch.ones(2**28)\n"
        "except Exception as error:\n    print(failure_of(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "memory\n"


def test_a_reason_is_one_line_with_its_type_unless_it_is_our_own() -> None:
    assert reason_of(RuntimeError("first\nsecond")) == "RuntimeError: first"
    assert reason_of(EngineError("could not be captured")) == "could not be captured"
    assert reason_of(MemoryError()) == "MemoryError"
    assert reason_of(DivergedError()) == "DivergedError"
