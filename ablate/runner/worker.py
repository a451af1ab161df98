"""A worker process: groups of tasks from standard input, messages to standard output.

An empty line ends a group, whose tasks take turns; a later number changes how many cores it may
keep busy. Importing PyTorch takes seconds: on Linux each group gets a fork of this process, which
has not computed anything. The process executes a group itself, and then ends, on other systems, and
to measure memory, which a fork shares. The exit status of a group is 0 when all tasks have sent how
they ended, 1 when the failure of one ended the process of all, one of `EXIT_STATUS` when a lost
rank did, and 130 when it was stopped.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch

from ablate.errors import RunError, StoppedError
from ablate.printable import printable
from ablate.processes import STACK_SIGNAL, die_with_parent
from ablate.registry import PluginError
from ablate.runner.devices import n_cores
from ablate.runner.display import label, progress_texts
from ablate.runner.failures import failure_of, reason_of
from ablate.runner.other_ranks import set_up
from ablate.runner.probe import probe_one
from ablate.runner.provenance import code_digest, git, now
from ablate.runner.run import HeldError, run_one
from ablate.runner.streams import Interleaver
from ablate.runner.task import (
    STARTING,
    Heartbeat,
    Message,
    ProcessExited,
    Task,
    TaskFinished,
    to_line,
)
from ablate.store import Store
from ablate.training import Progress

_HEARTBEAT_S = 1.0
_PROGRESS_S = 30.0  # between two lines of the log
_Send = Callable[[Message], None]


def main() -> int:
    """Do groups of tasks until there are no more; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # until a group begins, in this process or a fork
    code_digest()  # cached, as is `git`: the files may change before a fork needs the results
    git()
    # Standard output is reserved for messages; what libraries print there goes to the log
    sys.stdout.flush()
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: Message) -> None:
        channel.write(to_line(message))
        channel.flush()

    for tasks in _groups():
        measures_memory = tasks[0].action == "probe" and tasks[0].round == 0
        if sys.platform != "linux" or measures_memory:
            return _execute_group(tasks, send)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is a handler
        worker = os.getpid()
        fork = os.fork()
        if fork == 0:
            die_with_parent(worker)
            _end_at_once(_execute_group(tasks, send))
        status, is_stopped = _wait_for(fork)
        if is_stopped:
            return StoppedError.exit_status
        send(ProcessExited(status))
    return 0


def _groups() -> Iterator[list[Task]]:
    """Yield the tasks of each group, until standard input ends."""
    tasks: list[Task] = []
    for line in iter(_standard_input().readline, b""):
        text = line.decode().strip()
        if text.isdigit():
            continue  # it was for a group that has ended meanwhile
        if text:
            tasks.append(Task.from_line(text))
        elif tasks:
            yield tasks
            tasks = []


def _standard_input() -> io.FileIO:
    """Return standard input without a buffer: what it read ahead would be lost to the forks."""
    return io.FileIO(sys.stdin.fileno(), closefd=False)


def _wait_for(fork: int) -> tuple[int, bool]:
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(fork, number)

    before = signal.signal(signal.SIGTERM, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(fork, 0)
    signal.signal(signal.SIGTERM, before)
    return os.waitstatus_to_exitcode(status), bool(received)


def _end_at_once(status: int) -> NoReturn:
    """End the process without its exit handlers, which take a fork half a second."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # of a full disk
            stream.flush()
    os._exit(status)


def _execute_group(tasks: Sequence[Task], send: _Send) -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with tasks[0].log.open("ab") as log:  # for what is printed from now on
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    cores = _Cores()
    threading.Thread(target=cores.listen, daemon=True).start()
    try:
        set_up(tasks[0])
        _execute_tasks(tasks, send, stop.is_set, cores)
    except StoppedError:
        return StoppedError.exit_status
    except PluginError as error:
        sys.exit(str(error))
    return 0


def _execute_tasks(
    tasks: Sequence[Task], send: _Send, is_stopped: Callable[[], bool], cores: _Cores
) -> None:
    if len(tasks) == 1:
        send(_execute_task(tasks[0], send, is_stopped, cores))
        return
    interleaver = Interleaver(torch.device(tasks[0].device))

    def should_stop() -> bool:
        interleaver.yield_turn()
        return is_stopped()

    def take_part(task: Task) -> None:
        ending = _execute_task(task, send, should_stop, cores)
        send(ending)
        if ending.failure in ("memory", "engine"):
            # A capture may have been interrupted, after which no other run computes correctly
            _end_at_once(RunError.exit_status)

    interleaver.run([partial(take_part, task) for task in tasks])


def _execute_task(
    task: Task, send: _Send, should_stop: Callable[[], bool], cores: Callable[[], int]
) -> TaskFinished:
    store, reporter = Store(task.results), Reporter(task, send)

    def next_step() -> bool:
        reporter.goes_on()
        return should_stop()

    try:
        if task.action == "probe":
            probe_one(task, store, reporter)
        else:
            run_one(task, store, reporter, next_step, cores, reporter.goes_on)
    except StoppedError:
        reporter.line("stopped; the next call continues")
        raise
    except HeldError as error:
        reporter.line(f"left to it: {error}")
        return TaskFinished(task.key, "held", str(error))
    except Exception as error:
        with suppress(OSError):  # of the log, on a full disk
            traceback.print_exc()
        reporter.line(f"failed: {reason_of(error)}")
        return TaskFinished(task.key, failure_of(error), reason_of(error))
    reporter.line("ended")
    return TaskFinished(task.key)


class Reporter:
    """Sends heartbeats of a task to the pool, and prints dated lines into the task's log."""

    def __init__(
        self, task: Task, send: _Send, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._send, self._timer = label(task), send, timer
        self._last = Heartbeat(task.key, STARTING)
        self._sent_at = self._printed_at = timer()
        where = f"process {os.getpid()} on {socket.gethostname()}, {task.device}"
        self.line(f"{task.key} begins in {where}, {task.precision}, engine {task.engine}")

    def __call__(
        self, phase: str, progress: Progress | None = None, largest_batch: int | None = None
    ) -> None:
        """Send a phase and its progress; print a new phase, and its progress every half minute."""
        present, is_new = self._timer(), phase != self._last.phase
        is_last = progress is not None and progress.step == progress.n_steps
        if is_new or (progress and (is_last or present - self._printed_at >= _PROGRESS_S)):
            self._printed_at = present
            texts = progress_texts(progress) if progress else ()
            self.line("  ".join(filter(None, (phase, *texts))))
        self._last, self._sent_at = Heartbeat(self._last.key, phase, progress), present
        self._send(replace(self._last, largest_batch=largest_batch))

    def goes_on(self) -> None:
        """Send the last heartbeat again if a second has passed; called with every step of work."""
        if self._timer() - self._sent_at >= _HEARTBEAT_S:
            self._sent_at = self._timer()
            self._send(self._last)

    def line(self, text: str) -> None:
        with suppress(OSError):  # of a full disk
            print(printable(f"{now()}  {self._name}: {text}"), flush=True)  # noqa: T201 - into its log


class _Cores:
    """The number of cores that the group may keep busy; a call returns the present one."""

    def __init__(self) -> None:
        self._n_granted = 1
        self._n_present = n_cores()  # may be less than what is granted

    def __call__(self) -> int:
        return min(self._n_granted, self._n_present)

    def listen(self) -> None:
        """Read changes; end the process when standard input, and so the parent, has ended."""
        for line in iter(_standard_input().readline, b""):
            self._n_granted = int(line)
        os._exit(1)
