"""A job of the array: it takes groups from the queue and executes them in worker processes.

Slurm signals every process of a job. Before the time limit it sends SIGUSR2, upon which submitit
calls `QueueJob.checkpoint` and requeues the job. Before a pre-emption, and when a user cancels a
job, it sends SIGTERM: the job saves checkpoints, and Slurm ends or requeues it.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission

from ablate.console import Console
from ablate.errors import RunError, StoppedError
from ablate.processes import signal_blocked
from ablate.runner import devices
from ablate.runner.backends.contract import BackendRequest
from ablate.runner.backends.local import WORKER, LocalProcess
from ablate.runner.backends.task_queue import Entry, JobMessage, TaskQueue
from ablate.runner.devices import Device
from ablate.runner.display import Display
from ablate.runner.failures import TaskOutcome
from ablate.runner.pool import Pool
from ablate.runner.provenance import facts_of
from ablate.runner.sessions import session_file
from ablate.runner.task import Heartbeat, Silence, Task, TaskGroup

SAVE_TIMEOUT_S = 60.0
"""How long workers may take to save checkpoints; Slurm sends SIGUSR2 90 seconds ahead."""
_SIGNAL_TIMEOUT_S = 120.0  # after SIGTERM, until the job goes on because Slurm has not ended it
_POLL_S = 0.5
_HEARTBEAT_S = 1.0
_SAME_HEARTBEAT_S = 10.0  # of one that only says that a task goes on


@dataclass
class QueueJob:
    """Executes entries of a queue, until it has been empty for a while."""

    folder: Path  # of the queue
    request: BackendRequest  # of the call that submits it
    idle_s: float  # seconds that it waits for further entries before it ends
    # whether ``ablate status`` lists the job; needed after --detach, because the process that would
    # be listed has ended
    is_listed: bool = False
    command: Sequence[str] = WORKER  # starts a worker process
    _pool_context: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def __call__(self) -> None:
        """Execute entries; called by submitit on a node."""
        environment = JobEnvironment()
        job, is_local = environment.job_id, environment.cluster == "local"
        signal.signal(signal.SIGTERM, _raise_stopped)
        queue = TaskQueue(self.folder)
        with suppress(FileNotFoundError):  # the queue was removed, so that nothing is left to do
            slots = self._slots(queue)
            queue.start_messages(job)
            while True:
                try:
                    self._execute_entries(slots, queue, job)
                    return
                except StoppedError:
                    queue.requeue(job)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                deadline = time.monotonic() + (0.0 if is_local else _SIGNAL_TIMEOUT_S)
                while time.monotonic() < deadline and self.folder.exists():  # Slurm ends the job
                    time.sleep(_POLL_S)
                if is_local or not self.folder.exists():
                    return
                signal.signal(signal.SIGTERM, _raise_stopped)

    def checkpoint(self) -> DelayedSubmission:
        """Let the workers save checkpoints; return the job for submitit to requeue."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._pool_context.close()
        queue = TaskQueue(self.folder)
        queue.requeue(JobEnvironment().job_id)
        return DelayedSubmission(replace(self))

    def _slots(self, queue: TaskQueue) -> list[Device]:
        slots = devices.worker_slots(devices.find(self.request.device), self.request.jobs)
        facts = facts_of(slots[0])
        of_others, _ = queue.facts()
        if of_others is None:
            queue.save_facts(facts, len(slots))
        elif facts.names != of_others.names:
            ours, theirs = ("{} ({})".format(*each.names) for each in (facts, of_others))
            raise RunError(
                f"{socket.gethostname()} has {ours}, and the runs are made on {theirs}, so that "
                "their speeds can be compared; choose nodes, as in --slurm constraint=NAME, or "
                f"remove {queue.folder.parent / 'devices.json'} if all nodes have changed"
            )
        return list(slots)

    def _execute_entries(self, slots: Sequence[Device], queue: TaskQueue, job: str) -> None:
        idle_since = time.monotonic()
        queue.requeue(job)  # if a node has failed under this job, its entries are still taken
        self._pool_context = ExitStack()
        with self._pool_context:
            writer = _MessageWriter(queue, job)
            pool = self._pool_context.enter_context(
                Pool(slots, writer, self._start, SAVE_TIMEOUT_S, self.request.stall_after)
            )
            while True:
                entries, n_free = list[Entry](), len(slots)
                while n_free > 0 and (entry := queue.take(job)):
                    entries.append(entry)  # runs for all slots, or one entry with probes
                    n_free -= entry.n_slots if entry.tasks[0].action == "train" else n_free
                if entries:
                    first = entries[0].tasks[0]
                    session = session_file(first.results, first.experiment, writer)
                    with session if self.is_listed else nullcontext():
                        _run_entries(entries, pool, writer)
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since >= self.idle_s:
                    return
                else:
                    time.sleep(_POLL_S)

    def _start(self, device: Device, group: TaskGroup) -> LocalProcess:
        """Start a worker with SIGUSR2 blocked, which would kill it."""
        with signal_blocked(signal.SIGUSR2):
            return LocalProcess(device, group[0].log, self.command)


def _raise_stopped(_: int, __: FrameType | None) -> None:
    raise StoppedError("the job was asked to stop")


def _run_entries(entries: Sequence[Entry], pool: Pool, writer: _MessageWriter) -> None:
    """Execute entries side by side, the groups of each one after another."""
    writer.begin(entries)
    for groups in zip_longest(*(entry.groups for entry in entries), fillvalue=()):
        for outcome in pool.run(filter(None, groups)):
            writer.task_ended(outcome)
    for entry in entries:
        writer.queue.mark_ended(entry)


class _MessageWriter(Display):
    """Writes what happens in a job's pool to its messages; `session_file` needs the rest."""

    def __init__(self, queue: TaskQueue, job: str) -> None:
        super().__init__(Console(quiet=True))
        self.queue, self.job = queue, job
        self._entry_names: dict[str, str] = {}
        self._last: dict[str, tuple[Heartbeat, float]] = {}  # the last heartbeats, with the time

    def begin(self, entries: Sequence[Entry]) -> None:
        """Set the entries whose tasks will be executed, and announce them."""
        tasks = [task for entry in entries for task in entry.tasks]
        self._entry_names = {task.key: entry.name for entry in entries for task in entry.tasks}
        what = "measuring" if tasks[0].action == "probe" else "training"
        self.expect(tasks, what, len(tasks))

    def started(self, task: Task, device: Device) -> None:
        self._post("started", task, device=replace(device, node=socket.gethostname()))
        super().started(task, device)

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        """Write a heartbeat if its phase or batch is new, or once a second; rarely one again."""
        before, last = self._last.get(task.key, (None, 0.0))
        is_new = before is None or before.phase != heartbeat.phase or heartbeat.largest_batch
        every_s = _SAME_HEARTBEAT_S if heartbeat == before else _HEARTBEAT_S
        now = time.monotonic()
        if is_new or now - last >= every_s:
            self._last[task.key] = replace(heartbeat, largest_batch=None), now
            self._post("heartbeat", task, heartbeat=heartbeat)
        super().heartbeat(task, heartbeat)

    def stalled(self, task: Task, silence: Silence) -> None:
        self._post("stalled", task, silence=silence)
        super().stalled(task, silence)

    def task_ended(self, outcome: TaskOutcome) -> None:
        fields = {key: value for key, value in vars(outcome).items() if key != "task"}
        self._post("ended", outcome.task, outcome=fields)
        is_good = outcome.failure is None
        self.ended(outcome.task, outcome.reason or "done", is_good=is_good)

    def _post(
        self, kind: Literal["started", "heartbeat", "stalled", "ended"], task: Task, **more: Any
    ) -> None:
        self.queue.post(JobMessage(kind, self._entry_names[task.key], task.key, self.job, **more))
