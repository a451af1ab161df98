"""A worker process: crews of tasks from standard input, signs of life to standard output.

Started as ``python -m ablate.runner``; an empty line ends a crew, whose tasks are done by turns. A
number that comes later says how many cores it may keep busy from then on; before, it is one.

To import PyTorch takes seconds, so that is done once: on Linux each crew gets a fork of this
process, which has not computed anything. Nothing that a crew does, not even its death, reaches the
next one. The process does a crew itself, and ends, on other systems, to measure memory, which a
fork shares, and if an import has opened a GPU, which no fork can use.

A crew ends with 0 when all its tasks have left their results, be those failures, and with 130 when
it was told to stop. It never outlives whoever started the worker.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, TextIO

import torch

from ablate.errors import StoppedError
from ablate.processes import die_with_parent
from ablate.registry import PluginError, adopt
from ablate.runner.devices import n_cores
from ablate.runner.interleaving import Interleaver
from ablate.runner.probe import probe_one
from ablate.runner.run import run_one
from ablate.runner.task import Exit, Heartbeat, Task
from ablate.store import Store
from ablate.training import Progress

_Say = Callable[[Heartbeat | Exit], None]


def main() -> int:
    """Do crews until there are no more; return the exit status."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say = _speaker()
    for tasks in _crews():
        if sys.platform != "linux" or _counts_memory(tasks[0]) or has_open("/dev/nvidia"):
            return _work(tasks, say)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until somebody listens to it
        fork = os.fork()
        if fork == 0:
            die_with_parent()
            _end_at_once(_work(tasks, say))
        status, is_stopped = _outcome(fork)
        if is_stopped:
            return StoppedError.exit_status
        say(Exit(status))
    return 0


def _crews() -> Iterator[list[Task]]:
    """Yield the tasks of each crew, until standard input ends."""
    tasks: list[Task] = []
    for line in iter(_told().readline, b""):
        told = line.decode().strip()
        if told.isdigit():
            continue  # it was for a crew that has ended meanwhile
        if told:
            tasks.append(Task.from_line(told))
        elif tasks:
            yield tasks
            tasks = []


def _told() -> io.FileIO:
    """Return standard input, of which nothing is read ahead: a fork may have to read on."""
    return io.FileIO(sys.stdin.fileno(), closefd=False)


def _counts_memory(task: Task) -> bool:
    return task.action == "probe" and task.round == 0


def has_open(start: str) -> bool:
    """Return whether the process holds a file open whose path begins so; of Linux."""
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself is closed again
            if str(file.readlink()).startswith(start):
                return True
    return False


def _outcome(fork: int) -> tuple[int, bool]:
    """Wait for a fork; return how it ended, and whether we were told to stop and told it so."""
    told: list[int] = []

    def tell(number: int, _: object) -> None:
        told.append(number)
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(fork, number)

    before = signal.signal(signal.SIGTERM, tell)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(fork, 0)
    signal.signal(signal.SIGTERM, before)
    return os.waitstatus_to_exitcode(status), bool(told)


def _end_at_once(status: int) -> NoReturn:
    """End a fork without tidying up what it has from its parent, which takes half a second."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _work(tasks: Sequence[Task], say: _Say) -> int:
    """Do the tasks of a crew; return the exit status."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _log_to(tasks[0].log)
    cores = _Cores()
    threading.Thread(target=cores.listen, daemon=True).start()
    torch.set_num_threads(1)
    if tasks[0].device == "cuda":
        _compute_deterministically()
    try:
        for plugin in tasks[0].plugins or ():
            adopt(plugin)
        _do(tasks, say, stop.is_set, cores)
    except StoppedError:
        return StoppedError.exit_status
    except PluginError as error:
        sys.exit(str(error))
    return 0


def _do(tasks: Sequence[Task], say: _Say, is_stopped: Callable[[], bool], cores: _Cores) -> None:
    if len(tasks) == 1:
        _do_one(tasks[0], say, is_stopped, cores)
        return
    interleaver = Interleaver(torch.device(tasks[0].device))

    def should_stop() -> bool:
        interleaver.yield_turn()
        return is_stopped()

    interleaver.run([partial(_do_one, task, say, should_stop, cores) for task in tasks])


def _do_one(task: Task, say: _Say, should_stop: Callable[[], bool], cores: _Cores) -> None:
    store = Store(task.results)

    def tell(phase: str, progress: Progress | None = None) -> None:
        say(Heartbeat(task.key, phase, progress))

    if task.action == "probe":
        probe_one(task, store)
    else:
        run_one(task, store, tell, should_stop, cores)
    say(Heartbeat(task.key, "done", is_over=True))


def _speaker() -> _Say:
    """Take standard output for our own lines; what libraries print there goes to the log."""
    sys.stdout.flush()
    channel: TextIO = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(told: Heartbeat | Exit) -> None:
        channel.write(told.to_line())
        channel.flush()

    return say


def _log_to(file: Path) -> None:
    """Write what is printed from now on at the end of a file."""
    with file.open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())


def _compute_deterministically() -> None:
    """Have the same numbers every time, at the price of some speed on a GPU."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling memory that nobody reads only helps to find mistakes
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class _Cores:
    """How many cores the crew may keep busy, of those that there are; called, it tells."""

    def __init__(self) -> None:
        self._n = 1
        self._most = n_cores()  # there may be more runs at a time than cores

    def __call__(self) -> int:
        return min(self._n, self._most)

    def listen(self) -> None:
        """Hear of changes, and end the process at once when standard input ends.

        That it does when whoever started the worker has, elsewhere than on Linux, and if we asked
        Linux too late. What comes is for this crew until whoever writes has heard that it is over.
        """
        for line in iter(_told().readline, b""):
            self._n = int(line)
        os._exit(1)
