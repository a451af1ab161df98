"""Worker processes: one for every place, each on a device of its own, for one crew at a time."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ablate.runner.devices import Device
from ablate.runner.packing import TaskGroup
from ablate.runner.task import Exit, Heartbeat, Task, parse_message

WORKER = (sys.executable, "-P", "-m", "ablate.runner")
GRACE_S = 5.0
"""How long workers that were told to stop may take to save what they have."""


class WorkerListener(Protocol):
    """Whoever wants to know what the workers are doing."""

    def started(self, task: Task, device: Device) -> None:
        """Learn that a worker has begun."""

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        """Learn what a worker is doing."""


@dataclass(frozen=True)
class Ended:
    """How a task ended.

    Attributes:
        task: what a worker was told.
        reason: why it did not do it, in one line; None if it did.
    """

    task: Task
    reason: str | None


class Pool:
    """Runs tasks in worker processes; leaving it stops those that are still at work.

    Args:
        worker_slots: one device for each worker that may be at work at the same time.
        listener: is told what happens.
        command: starts a worker.
    """

    def __init__(
        self,
        worker_slots: Iterable[Device],
        listener: WorkerListener,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._heard: _Heard = queue.SimpleQueue()
        self._idle = [_Worker(device, command, self._heard) for device in worker_slots]
        self._busy: list[_Worker] = []
        self._listener = listener

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ask the workers to stop, and end those that do not within `GRACE_S` seconds."""
        for worker in self._busy:
            worker.process.terminate()
        try:
            deadline = time.monotonic() + GRACE_S
            for worker in self._busy:
                worker.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for worker in self._busy:
                worker.process.kill()
        for worker in chain(self._busy, self._idle):
            worker.close()

    def run(self, pack_tasks: Iterable[TaskGroup], *, is_alone: bool = False) -> Iterator[Ended]:
        """Do all tasks, the first crews first; yield each when it has ended.

        Args:
            pack_tasks: tasks that share a process.
            is_alone: whether a crew must have its device for itself.
        """
        waiting = deque(pack_tasks)
        while waiting or self._busy:
            while waiting and (worker := self._next(is_alone=is_alone)):
                self._start(waiting.popleft(), worker)
            if not is_alone:
                self._share_cores()
            worker, process, told = self._heard.get()
            if worker not in self._busy or worker.process is not process:
                continue  # a process has ended that had nothing to do
            if isinstance(told, Exit):
                self._busy.remove(worker)
                self._idle.append(worker)
                yield from (Ended(task, worker.reason(told)) for task in worker.left.values())
            elif told.is_over:
                yield Ended(worker.left.pop(told.key), None)
            elif told.key in worker.left:
                self._listener.heartbeat(worker.left[told.key], told)

    def _share_cores(self) -> None:
        """Let those that are at work have the cores of a CPU that nobody else needs any more."""
        busy = [worker for worker in self._busy if worker.device.kind == "cpu"]
        idle = [worker for worker in self._idle if worker.device.kind == "cpu"]
        for number, worker in enumerate(busy):
            worker.grant(1 + len(idle[number :: len(busy)]))

    def _next(self, *, is_alone: bool) -> _Worker | None:
        """Return the worker that is to do the next crew, ready if one is; None if it must wait."""
        taken = {worker.device for worker in self._busy} if is_alone else ()
        free = [worker for worker in self._idle if worker.device not in taken]
        return max(free, key=lambda worker: worker.is_ready, default=None)

    def _start(self, group: TaskGroup, worker: _Worker) -> None:
        self._idle.remove(worker)
        self._busy.append(worker)
        worker.begin(group)
        for task in group:
            self._listener.started(task, worker.device)


class _Worker:
    """A place to work, and the process there. It shares our process group, but not our Ctrl-C.

    The process is started when there is something to do, and again if it has ended.

    Attributes:
        device: what the process sees.
        left: the tasks that have not ended yet, by their keys.
    """

    def __init__(self, device: Device, command: Sequence[str], heard: _Heard) -> None:
        self.device = device
        self.left: dict[str, Task] = {}
        self._command = command
        self._cores = 1
        self._heard = heard
        self._started: tuple[_Process, threading.Thread] | None = None

    @property
    def process(self) -> _Process:
        """Return the process that has been started."""
        assert self._started is not None, "who is busy has a process"
        return self._started[0]

    @property
    def is_ready(self) -> bool:
        """Return whether the process is there, and need not be started, which takes seconds."""
        return self._started is not None and self.process.poll() is None

    def begin(self, group: TaskGroup) -> None:
        """Send the tasks, and leave the pipe open: its end tells the worker of ours."""
        self.left = {task.key: task for task in group}
        self._cores = 1
        self._log = group[0].log
        for task in group:
            task.log.parent.mkdir(parents=True, exist_ok=True)
            text = "" if task is group[0] else f"It shared a process, see {self._log}\n"
            task.log.write_text(text, encoding="utf-8")
        if not self.is_ready:
            self.close()
        if self._started is None:
            process = self._start()
            thread = threading.Thread(target=self._listen, args=(process,), daemon=True)
            thread.start()
            self._started = process, thread
        self._send("".join(task.to_line() for task in group) + "\n")

    def grant(self, n_cores: int) -> None:
        """Tell the process how many cores it may keep busy, if that is new."""
        if n_cores == self._cores:
            return
        self._cores = n_cores
        self._send(f"{n_cores}\n")

    def _send(self, text: str) -> None:
        """Write to the process, unless it has died; then `_listen` notices."""
        stdin = self.process.stdin
        assert stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            stdin.write(text)
            stdin.flush()

    def close(self) -> None:
        """End the process, if there is one; it must have nothing to do, and so nothing to save."""
        if self._started is None:
            return
        process, thread = self._started
        self._started = None
        process.kill()
        thread.join()
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()

    def reason(self, ended: Exit) -> str | None:
        """Return why a crew failed; None if it did not."""
        if ended.status == 0:
            return None
        if ended.status < 0:
            guess = " (out of memory?)" if -ended.status == signal.SIGKILL else ""
            return f"killed by signal {-ended.status}{guess}"
        said = self._log.read_text(encoding="utf-8", errors="replace").strip()
        last = said.splitlines()[-1] if said else "it said nothing"
        return f"the worker ended with exit status {ended.status}: {last}"

    def _start(self) -> _Process:
        # The same code as ours, wherever it was imported from
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        environment = {**os.environ, **self.device.environment(), "PYTHONPATH": path}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
        try:
            with self._log.open("ab") as log:
                return subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    text=True,
                    encoding="utf-8",
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _listen(self, process: _Process) -> None:
        """Pass on every sign of life, and how each crew has ended; the last when the process is."""
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            try:
                self._heard.put((self, process, parse_message(line)))
            except ValueError:
                continue
        self._heard.put((self, process, Exit(process.wait())))


_Process = subprocess.Popen[str]
_Heard = queue.SimpleQueue[tuple[_Worker, _Process, Heartbeat | Exit]]
