"""The other ranks of a run on several devices: started by the first one, and ended with it.

``torchrun`` would import PyTorch anew for every rank.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import NoReturn

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ablate.errors import DivergedError, RunError, StoppedError
from ablate.processes import die_with_parent, exit_reason, print_stacks_on_signal
from ablate.registry import adopt
from ablate.runner.devices import compute_deterministically
from ablate.runner.failures import (
    EXIT_STATUS,
    RankLostError,
    failure_of,
    failure_of_exit,
    reason_of,
)
from ablate.runner.task import Failure, Task
from ablate.training.ranks import ALONE, TIMEOUT, Ranks, process_group

Follow = Callable[[Task, Ranks], None]
"""Executes the part of a task for ranks other than the first; a function of a module."""

_HOST = "127.0.0.1"
_GRACE_S = 10.0  # within which a rank should notice that another one is lost
_LOST_MESSAGES = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
"""Parts of messages of a `RuntimeError` by which PyTorch says that another rank does not answer."""

_LOST_STATUS = 3
"""With which a rank ends because another one does not answer: the cause is elsewhere."""


@contextmanager
def joined_ranks(task: Task, follow: Follow) -> Iterator[Ranks]:
    """Make this process the first rank of a task; the others end with the block at the latest."""
    device = torch.device(task.device)
    if task.n_devices == 1:
        yield ALONE
        return
    others = _Others(task, follow)
    try:
        with process_group(device, others.store, 0, task.n_devices) as ranks:
            yield ranks
        for process in others.processes:  # which end after the work
            process.join(_GRACE_S)
    except Exception as error:
        cause = others.cause(error)
        if cause is error:
            raise
        raise cause from error
    finally:
        others.close()


class _Others:
    """The ranks from 1 on, each a process."""

    def __init__(self, task: Task, follow: Follow) -> None:
        self._n = task.n_devices
        can_fork = sys.platform == "linux" and not torch.cuda.is_initialized()
        fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
        context = fork if can_fork else spawn
        pipes = [context.Pipe() for _ in range(1, self._n)]
        self._connections = [own for own, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(os.getpid(), end, rank, task, follow), daemon=True)
            for rank, (_, end) in enumerate(pipes, start=1)
        ]
        for process, (_, end) in zip(self.processes, pipes, strict=True):
            process.start()
            end.close()
        # Created after the forks, because it has a thread. Port 0 stands for any free port
        self.store = _store(0, is_master=True)
        for own in self._connections:
            own.send(self.store.port)
        self._is_closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def cause(self, error: Exception) -> Exception:
        """Return why the ranks end: the first one's error, or the loss of a rank that caused it."""
        if not _is_lost(error):
            return error
        deadline = time.monotonic() + _GRACE_S
        while not (losses := self._losses()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not losses:
            return RankLostError(f"the ranks have lost each other: {reason_of(error)}", "other")
        return losses[0]

    def close(self) -> None:
        self._is_closed.set()
        for process, own in zip(self.processes, self._connections, strict=True):
            process.kill()
            process.join()
            own.close()

    def _losses(self) -> list[RankLostError]:
        """Return the ranks that have failed by themselves, with the reasons."""
        losses = []
        for rank, process in enumerate(self.processes, start=1):
            status, own = process.exitcode, self._connections[rank - 1]
            if status in (None, 0, _LOST_STATUS):
                continue
            failure: Failure = failure_of_exit(status, "")
            reason = exit_reason(status) if status < 0 else f"ended with {exit_reason(status)}"
            with suppress(EOFError, OSError):
                if status > 0 and own.poll():
                    failure, reason = own.recv()
            losses.append(RankLostError(f"rank {rank} of {self._n}: {reason}", failure))
        return losses

    def _watch(self) -> None:
        """End this process if it does not notice the loss of another: NCCL waits very long."""
        running = list(self.processes)
        while running and not any(process.exitcode for process in running):
            connection.wait([process.sentinel for process in running], timeout=1.0)
            if self._is_closed.is_set():
                return
            running = [process for process in running if process.exitcode != 0]
        if running and not self._is_closed.wait(2 * _GRACE_S):
            losses = self._losses() or [RankLostError("the ranks have lost each other", "other")]
            sys.stderr.write(f"{'; '.join(map(str, losses))}\n")
            os._exit(EXIT_STATUS.get(losses[0].failure, RunError.exit_status))


def _store(port: int, *, is_master: bool) -> TCPStore:
    """Return the store in which ranks find each other; that of the first rank is the master."""
    return TCPStore(_HOST, port, is_master=is_master, timeout=TIMEOUT, wait_for_workers=False)


def _serve(parent: int, own: Connection, rank: int, task: Task, follow: Follow) -> NoReturn:
    """Execute a task as one of the other ranks."""
    gc.freeze()  # finalizers of inherited objects may wait for threads that a fork does not have
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank ends this one
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm and `timeout` send it to all processes
    status = 0
    try:
        set_up(task)
        store = _store(own.recv(), is_master=False)
        with process_group(torch.device(task.device), store, rank, task.n_devices) as ranks:
            follow(task, ranks)
    except (StoppedError, DivergedError):
        pass  # the first rank ends with the same error, and reports it
    except Exception as error:
        traceback.print_exc()
        status = _LOST_STATUS if _is_lost(error) else RunError.exit_status
        if status != _LOST_STATUS:
            own.send((failure_of(error), reason_of(error)))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def set_up(task: Task) -> None:
    """Prepare a process for a task, or for a group of tasks with the same device and plugins."""
    torch.set_num_threads(1)
    print_stacks_on_signal()
    if task.device == "cuda":
        compute_deterministically()
    for plugin in task.plugins or ():
        adopt(plugin)


def _is_lost(error: Exception) -> bool:
    """Return whether an error only says that another rank does not answer."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_MESSAGES)
