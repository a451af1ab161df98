"""Files from which another process reads what each call of ``ablate run`` is doing.

<results>/sessions/<host>-<pid>.json   rewritten every few seconds, removed when the call ends
<results>/sessions/<host>-<pid>.lock   held by the call; if it is free, the call was killed
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import Timeout

from ablate.errors import StoreError
from ablate.printable import printable_content
from ablate.runner.devices import Device
from ablate.runner.provenance import now
from ablate.runner.task import ForwardingListener, Heartbeat, ProgressListener, Silence, Task
from ablate.store import process_lock, writable, write_whole

_EVERY_S = 2.0
_SILENT_AT_MOST_S = 15.0
_MOST_FAILURES = 20


@dataclass
class RunningTask:
    """A task at work."""

    task: str  # experiment, row and seed
    run: str  # its hash
    device: str  # as a user names it
    since: str  # when it began
    phase: str = "starting"  # what the worker is doing, in a word or two
    step: int | None = None  # optimizer steps done; None before training
    n_steps: int | None = None  # of all
    seconds_left: float | None = None  # of its training; None until it is known
    seconds: float = 0.0  # how long it had been at work when the file was written
    silent_seconds: float = 0.0  # how long it had sent nothing by then, if that is too long; else 0


@dataclass
class Session:
    """A call of ``ablate run``, read from its file."""

    host: str  # the machine that it runs on
    pid: int  # of its process there
    experiment: str  # its name
    began: str  # when
    updated: str  # when the file was last written
    stage: str = "starting"  # what is being done, in words
    n_tasks: int = 0  # of this stage
    n_ended: int = 0  # how many of them have ended
    running: list[RunningTask] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # the last ones, with the reason
    seconds: float = 0.0  # how long the call had been at work by then, by a monotonic clock
    is_alive: bool = True  # whether the call goes on; if not, it was killed


class SessionFile(ForwardingListener):
    """Writes what it is called with to a file, and forwards every call."""

    def __init__(
        self,
        listener: ProgressListener,
        file: Path,
        experiment: str,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(listener)
        self._file, self._timer = file, timer
        self._session = Session(socket.gethostname(), os.getpid(), experiment, now(), now())
        self._running: dict[str, tuple[RunningTask, float]] = {}  # with the time of its beginning
        self._silent_since: dict[str, float] = {}  # of tasks that are stalled
        self._began = self._next_at = timer()
        self._lock = threading.Lock()

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        with self._lock:
            self._session.n_tasks, self._session.n_ended = len(tasks), 0
            self._session.stage = what or self._session.stage
            self._write()
        super().expect(tasks, what, n_at_once)

    def started(self, task: Task, device: Device) -> None:
        running = RunningTask(_name(task), task.key, str(device), now())
        with self._lock:
            self._running[task.key] = running, self._timer()
            self._write()
        super().started(task, device)

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        progress = heartbeat.progress
        with self._lock:
            running, _ = self._running[task.key]
            running.phase = heartbeat.phase
            goes_on = self._silent_since.pop(task.key, None) is not None
            running.silent_seconds = 0.0
            if progress is not None:
                running.step, running.n_steps = progress.step, progress.n_steps
            running.seconds_left = None if progress is None else progress.seconds_left
            if goes_on or self._timer() >= self._next_at:
                self._write()
        super().heartbeat(task, heartbeat)

    def stalled(self, task: Task, silence: Silence) -> None:
        with self._lock:
            self._silent_since[task.key] = self._timer() - silence.seconds
            self._write()
        super().stalled(task, silence)

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        with self._lock:
            self._session.n_ended += 1
            self._running.pop(task.key, None)
            self._silent_since.pop(task.key, None)
            if not is_good:
                failures = [*self._session.failures, f"{_name(task)}: {outcome}"]
                self._session.failures = failures[-_MOST_FAILURES:]
            self._write()
        super().ended(task, outcome, is_good=is_good)

    def refresh(self) -> None:
        with self._lock:
            if self._timer() >= self._next_at - _EVERY_S + _SILENT_AT_MOST_S:
                self._write()

    def _write(self) -> None:
        present = self._timer()
        for running, began in self._running.values():
            running.seconds = present - began
        for key, since in self._silent_since.items():
            self._running[key][0].silent_seconds = present - since
        self._session.running = [running for running, _ in self._running.values()]
        self._session.updated, self._session.seconds = now(), present - self._began
        with suppress(StoreError):  # on a full disk; the runs report that themselves
            write_whole(self._file, json.dumps(asdict(self._session), indent=1) + "\n")
        self._next_at = self._timer() + _EVERY_S


@contextmanager
def session_file(
    results: Path,
    experiment: str,
    listener: ProgressListener,
    timer: Callable[[], float] = time.monotonic,
) -> Iterator[ProgressListener]:
    """Yield a listener that writes a session file during the block, and forwards every call."""
    file = results / "sessions" / f"{socket.gethostname()}-{os.getpid()}.json"
    lock = process_lock(file.with_suffix(".lock"))
    with writable(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise StoreError(f"{file}: is of another call with this process id") from error
    session, is_over = SessionFile(listener, file, experiment, timer), threading.Event()

    def refresh() -> None:
        while not is_over.wait(_EVERY_S):
            session.refresh()

    refreshing = threading.Thread(target=refresh, daemon=True)
    refreshing.start()
    try:
        yield session
    finally:
        is_over.set()
        refreshing.join()
        _remove(file)
        lock.release()


def sessions(results: Path) -> list[Session]:
    """Return the calls on a folder of results, the oldest first; a killed one only once."""
    all_sessions = filter(None, map(_read, (results / "sessions").glob("*.json")))
    return sorted(all_sessions, key=lambda session: (session.began, session.pid))


def _read(file: Path) -> Session | None:
    """Return the session of a file; None if it has ended or been written by another version."""
    try:
        data = printable_content(json.loads(file.read_bytes()))
        running = [RunningTask(**task) for task in data.pop("running")]
        session = Session(**data, running=running)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    lock = process_lock(file.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except OSError:  # the call holds it (Timeout), or the folder does not allow locks
        return session
    has_ended = not file.exists()  # since it was read
    session.is_alive = False
    _remove(file)
    lock.release()
    return None if has_ended else session


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_suffix(".lock").unlink(missing_ok=True)


def _name(task: Task) -> str:
    name = f"{task.experiment}:{task.variant}:{task.seed}"
    return f"{name} (probe)" if task.action == "probe" else name
