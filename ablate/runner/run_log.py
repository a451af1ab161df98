"""Lines in a run's log that say what it does and when, beside those that libraries print."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ablate.printable import printable
from ablate.runner.display import label, progress_texts
from ablate.runner.provenance import now
from ablate.runner.task import Task
from ablate.training import Progress

_EVERY_S = 30.0


def append_to_log(log: Path, text: str) -> None:
    """Append a line with the date to the log of a task that another process executes."""
    with suppress(OSError), log.open("a", encoding="utf-8") as file:  # on a full disk
        file.write(f"{now()}  {text}\n")


class RunLog:
    """Prints the phases of a task, and how far its training is.

    Args:
        task: that begins.
        timer: returns the present time in seconds.
    """

    def __init__(self, task: Task, timer: Callable[[], float] = time.monotonic) -> None:
        self._name, self._timer = label(task), timer
        self._phase, self._last = "", timer()
        place = f"process {os.getpid()} on {socket.gethostname()}, {task.device}"
        self.line(f"{task.key} begins in {place}, {task.precision}, engine {task.engine}")

    def progress(self, phase: str, progress: Progress | None) -> None:
        """Print a phase when it is new, and its progress every half minute."""
        is_new, self._phase = phase != self._phase, phase
        is_last = progress is not None and progress.step == progress.n_steps
        if is_new or (progress is not None and (self._timer() - self._last >= _EVERY_S or is_last)):
            self._last = self._timer()
            self.line(
                "  ".join(filter(None, (phase, *(progress_texts(progress) if progress else ()))))
            )

    def line(self, text: str) -> None:
        """Print a line with the date and the name of the task."""
        with suppress(OSError):  # of a full disk
            print(printable(f"{now()}  {self._name}: {text}"), flush=True)  # noqa: T201 - into its log
