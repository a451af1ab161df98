"""Worker processes: a fresh one for every crew, each on a device of its own."""

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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ablate.runner.crews import Crew
from ablate.runner.devices import Device
from ablate.runner.task import Sign, Task

WORKER = (sys.executable, "-P", "-m", "ablate.runner.worker")
GRACE_S = 5.0
"""How long workers that were told to stop may take to save what they have."""


class Watcher(Protocol):
    """Whoever wants to know what the workers are doing."""

    def started(self, task: Task, device: Device) -> None:
        """Learn that a worker has begun."""

    def signed(self, task: Task, sign: Sign) -> None:
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
        places: one device for each worker that may be at work at the same time.
        watcher: is told what happens.
        command: starts a worker.
    """

    def __init__(
        self, places: Iterable[Device], watcher: Watcher, command: Sequence[str] = WORKER
    ) -> None:
        self._free = list(places)
        self._watcher = watcher
        self._command = command
        self._workers: list[_Worker] = []
        self._heard: _Heard = queue.SimpleQueue()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ask the workers to stop, and end those that do not within `GRACE_S` seconds."""
        for worker in self._workers:
            worker.process.terminate()
        try:
            deadline = time.monotonic() + GRACE_S
            for worker in self._workers:
                worker.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for worker in self._workers:
                worker.process.kill()
        for worker in self._workers:
            worker.close()

    def run(self, crews: Iterable[Crew]) -> Iterator[Ended]:
        """Do all tasks, the first crews first; yield each when it has ended."""
        waiting = deque(crews)
        while waiting or self._workers:
            while waiting and self._free:
                self._start(waiting.popleft(), self._free.pop(0))
            worker, sign = self._heard.get()
            if sign is None:
                self._workers.remove(worker)
                self._free.append(worker.device)
                worker.close()
                yield from (Ended(task, worker.reason()) for task in worker.left.values())
            elif sign.is_over:
                yield Ended(worker.left.pop(sign.key), None)
            elif sign.key in worker.left:
                self._watcher.signed(worker.left[sign.key], sign)

    def _start(self, crew: Crew, device: Device) -> None:
        worker = _Worker(crew, device, self._command)
        self._workers.append(worker)
        worker.begin(self._heard)
        for task in crew:
            self._watcher.started(task, device)


class _Worker:
    """One process. It shares our process group, but not our Ctrl-C: we tell it when to stop.

    Attributes:
        left: the tasks that have not ended yet, by their keys.
    """

    def __init__(self, crew: Crew, device: Device, command: Sequence[str]) -> None:
        self.device = device
        self.left = {task.key: task for task in crew}
        self._crew = crew
        self._log = crew[0].log
        for task in crew:
            task.log.parent.mkdir(parents=True, exist_ok=True)
        for task in crew[1:]:
            task.log.write_text(f"It shared a process, see {self._log}\n", encoding="utf-8")
        # The same code as ours, wherever it was imported from
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        environment = {**os.environ, **device.environment(), "PYTHONPATH": path}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
        try:
            with self._log.open("wb") as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    text=True,
                    encoding="utf-8",
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def begin(self, heard: _Heard) -> None:
        """Send the tasks, and leave the pipe open: its end tells the worker of ours."""
        self.thread = threading.Thread(target=self._listen, args=(heard,), daemon=True)
        self.thread.start()
        assert self.process.stdin is not None, "it is a pipe"
        try:
            self.process.stdin.writelines(task.to_line() for task in self._crew)
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # it has died already; `_listen` notices

    def close(self) -> None:
        """Wait for the process and close the pipes."""
        self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None, "both are pipes"
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def reason(self) -> str | None:
        """Return why the process failed; None if it did not."""
        status = self.process.returncode
        if status == 0:
            return None
        if status < 0:
            guess = " (out of memory?)" if -status == signal.SIGKILL else ""
            return f"killed by signal {-status}{guess}"
        said = self._log.read_text(encoding="utf-8", errors="replace").strip()
        last = said.splitlines()[-1] if said else "it said nothing"
        return f"the worker ended with exit status {status}: {last}"

    def _listen(self, heard: _Heard) -> None:
        """Pass on every sign of life, then None when the process is gone."""
        assert self.process.stdout is not None, "it is a pipe"
        for line in self.process.stdout:
            try:
                heard.put((self, Sign.from_line(line)))
            except ValueError:
                continue
        self.process.wait()
        heard.put((self, None))


_Heard = queue.SimpleQueue[tuple[_Worker, Sign | None]]
