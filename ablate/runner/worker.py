"""A worker process: tasks from standard input, signs of life to standard output.

Started as ``python -m ablate.runner.worker``; an empty line ends the tasks, which it does by turns.
It ends with 0 when all have left their results, be those failures, and with 130 when it was told to
stop. It never outlives whoever started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

import torch

from ablate.errors import StoppedError
from ablate.registry import PluginError, adopt
from ablate.runner.probe import probe_one
from ablate.runner.run import run_one
from ablate.runner.task import Sign, Task
from ablate.runner.turns import Turns
from ablate.store import Store
from ablate.training import Progress

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Do the tasks; return the exit status."""
    _die_with_parent()
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    say = _speaker()
    tasks = [Task.from_line(line) for line in iter(sys.stdin.readline, "\n")]
    threading.Thread(target=_watch_parent, daemon=True).start()
    torch.set_num_threads(1)
    if tasks[0].device == "cuda":
        _compute_deterministically()
    try:
        for plugin in tasks[0].plugins or ():
            adopt(plugin)
        _do(tasks, say, stop.is_set)
    except StoppedError:
        return StoppedError.exit_status
    except PluginError as error:
        sys.exit(str(error))
    return 0


def _do(tasks: Sequence[Task], say: Callable[[Sign], None], is_stopped: Callable[[], bool]) -> None:
    if len(tasks) == 1:
        _do_one(tasks[0], say, is_stopped)
        return
    turns = Turns(torch.device(tasks[0].device))

    def should_stop() -> bool:
        turns.pass_on()
        return is_stopped()

    turns.run([partial(_do_one, task, say, should_stop) for task in tasks])


def _do_one(task: Task, say: Callable[[Sign], None], should_stop: Callable[[], bool]) -> None:
    store = Store(task.results)

    def tell(phase: str, progress: Progress | None = None) -> None:
        say(Sign(task.key, phase, progress))

    if task.action == "probe":
        probe_one(task, store)
    else:
        run_one(task, store, tell, should_stop)
    say(Sign(task.key, "done", is_over=True))


def _speaker() -> Callable[[Sign], None]:
    """Take standard output for our own lines; what libraries print there goes to the log."""
    sys.stdout.flush()
    channel: TextIO = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(sign: Sign) -> None:
        channel.write(sign.to_line())
        channel.flush()

    return say


def _compute_deterministically() -> None:
    """Have the same numbers every time, at the price of some speed on a GPU."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling memory that nobody reads only helps to find mistakes
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _die_with_parent() -> None:
    """Ask Linux to kill us when our parent ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch_parent() -> None:
    """End at once when standard input does: elsewhere than on Linux, and if we asked too late."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
