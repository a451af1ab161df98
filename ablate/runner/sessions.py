"""Files from which another process reads what each call of ``ablate run`` is doing.

<results>/sessions/<host>-<pid>.json   rewritten every few seconds, removed when the call ends
<results>/sessions/<host>-<pid>.lock   held by the call; if it is free, the call was killed
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread

from ablate.errors import StoreError
from ablate.printable import printable_content
from ablate.runner.display import Display, Running
from ablate.runner.provenance import now
from ablate.runner.task import STARTING, Task
from ablate.store import process_lock, writable, write_whole

_EVERY_S = 2.0
_MOST_FAILURES = 20


@dataclass
class RunningTask:
    """A task at work."""

    task: str  # experiment, row and seed
    run: str  # its hash
    device: str  # as a user names it
    since: str  # when it began
    phase: str  # what the worker is doing, in a word or two
    step: int | None  # optimizer steps done; None before training
    n_steps: int | None  # of all
    seconds_left: float | None  # of its training; None until it is known
    seconds: float  # how long it had been at work when the file was written
    silent_seconds: float  # how long it had sent nothing by then, if that is too long; else 0


@dataclass
class Session:
    """A call of ``ablate run``, read from its file."""

    host: str  # the machine that it runs on
    pid: int  # of its process there
    experiment: str  # its name
    began: str  # when
    updated: str  # when the file was last written
    stage: str = STARTING  # what is being done, in words
    n_tasks: int = 0  # of this stage
    n_ended: int = 0  # how many of them have ended
    running: list[RunningTask] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # the last ones, with the reason
    seconds: float = 0.0  # how long the call had been at work by then, by a monotonic clock
    is_alive: bool = True  # whether the call goes on; if not, it was killed


@contextmanager
def session_file(results: Path, experiment: str, display: Display) -> Iterator[None]:
    """Write what a display shows to a session file, every few seconds during the block."""
    file = results / "sessions" / f"{socket.gethostname()}-{os.getpid()}.json"
    lock = process_lock(file.with_suffix(".lock"))
    with writable(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    session, is_over = Session(socket.gethostname(), os.getpid(), experiment, now(), now()), Event()
    began = display.timer()

    def write() -> None:
        while True:
            update(session, display, display.timer() - began)
            with suppress(StoreError):  # on a full disk; the runs report that themselves
                write_whole(file, json.dumps(asdict(session), indent=1) + "\n")
            if is_over.wait(_EVERY_S):
                return

    writing = Thread(target=write, daemon=True)
    writing.start()
    try:
        yield
    finally:
        is_over.set()
        writing.join()
        _remove(file)
        lock.release()


def update(session: Session, display: Display, seconds: float) -> None:
    """Set what a display shows, and for how long the call has been at work."""
    present = display.timer()
    session.stage, session.updated, session.seconds = display.stage, now(), seconds
    session.n_tasks, session.n_ended = display.n_tasks, display.n_ended
    failures = display.failures[-_MOST_FAILURES:]
    session.failures = [f"{_name(task)}: {outcome}" for task, outcome in failures]
    at_work = list(display.running.values())  # which another thread changes
    session.running = [_describe(running, present) for running in at_work]


def sessions(results: Path) -> list[Session]:
    """Return the calls on a folder of results, the oldest first; a killed one only once."""
    all_sessions = filter(None, map(_read, (results / "sessions").glob("*.json")))
    return sorted(all_sessions, key=lambda session: (session.began, session.pid))


def _describe(running: Running, present: float) -> RunningTask:
    progress, training = running.progress, running.heartbeat.progress
    return RunningTask(
        task=_name(running.task),
        run=running.task.key,
        device=str(running.device),
        since=running.began,
        phase=running.heartbeat.phase,
        step=None if progress is None else progress.step,
        n_steps=None if progress is None else progress.n_steps,
        seconds_left=None if training is None else training.seconds_left,
        seconds=present - running.since,
        silent_seconds=present - running.last_heartbeat_at if running.is_stalled else 0.0,
    )


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
