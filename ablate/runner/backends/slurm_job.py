"""What a job of the array does: it takes groups from the queue and has worker processes do them.

Slurm signals every process of a job. Before its time is up it sends SIGUSR2, upon which submitit
has the job save what it has and puts it into the queue of Slurm again. Before a pre-emption, and
when a user cancels a job, it sends SIGTERM: the job saves what it has, and then it is Slurm that
decides what becomes of it.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission

from ablate.errors import RunError, StoppedError
from ablate.runner import devices
from ablate.runner.backends.local import WORKER, LocalProcess
from ablate.runner.backends.task_queue import Entry, JobMessage, TaskQueue
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.listener import ProgressListener
from ablate.runner.packing import TaskGroup
from ablate.runner.pool import Pool
from ablate.runner.provenance import hardware_of
from ablate.runner.retries import TaskOutcome
from ablate.runner.sessions import session_file
from ablate.runner.task import Heartbeat, Task

SAVE_S = 60.0
"""How long workers may take to save what they have; Slurm warns them 90 seconds ahead."""
_FATE_S = 120.0  # a signal may have been sent without anything that follows
_POLL_S = 0.5
_HEARTBEAT_S = 1.0


@dataclass
class QueueJob:
    """Does entries of a queue, until it has been empty for a while.

    Attributes:
        folder: of the queue.
        device: as ``--device`` names it.
        jobs: runs at a time on a CPU; None: as many as the job has cores.
        idle_s: how long it waits for more.
        is_listed: whether ``ablate status`` lists it, because the process that has submitted it,
            which would be listed, has left.
        command: starts a worker process.
    """

    folder: Path
    device: str
    jobs: int | None
    idle_s: float
    is_listed: bool = False
    command: Sequence[str] = WORKER
    _at_work: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def __call__(self) -> None:
        """Do entries; called by submitit on a node."""
        environment = JobEnvironment()
        signal.signal(signal.SIGTERM, _stop)
        with suppress(FileNotFoundError):  # the queue was removed: there is no more to do
            self._serve(environment.job_id, is_local=environment.cluster == "local")

    def checkpoint(self) -> DelayedSubmission:
        """Have the workers save what they have; return what submitit puts into the queue again."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._at_work.close()
        queue = TaskQueue(self.folder)
        queue.give_back(JobEnvironment().job_id)
        return DelayedSubmission(replace(self))

    def _serve(self, job: str, *, is_local: bool) -> None:
        queue = TaskQueue(self.folder)
        slots = self._slots(queue)
        queue.begin(job)
        while True:
            try:
                self._do_entries(slots, queue, job)
                return
            except StoppedError:
                queue.give_back(job)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if is_local or not self._goes_on():
                return
            signal.signal(signal.SIGTERM, _stop)

    def _goes_on(self) -> bool:
        """Wait until Slurm ends the job; return True if it does not, False if nothing is to do."""
        deadline = time.monotonic() + _FATE_S
        while time.monotonic() < deadline and self.folder.exists():
            time.sleep(_POLL_S)
        return self.folder.exists()

    def _slots(self, queue: TaskQueue) -> list[Device]:
        """Return what the job computes on, the same kind as the others have.

        Raises:
            RunError: if it is of another kind.
        """
        slots = devices.worker_slots(devices.find(self.device), self.jobs)
        facts = DeviceFacts(
            hardware_of(slots[0]), devices.has_bf16(slots[0]), devices.memory_mib(slots[0])
        )
        of_others, _ = queue.facts()
        if of_others is None:
            queue.save_facts(facts, len(slots))
        elif (ours := _kind(facts)) != (theirs := _kind(of_others)):
            raise RunError(
                f"{socket.gethostname()} has {ours}, and the runs are made on {theirs}, so that "
                "their speeds can be compared; say which nodes, as in --slurm constraint=NAME, or "
                f"remove {queue.folder.parent / 'devices.json'} if all nodes have changed"
            )
        return list(slots)

    def _do_entries(self, slots: Sequence[Device], queue: TaskQueue, job: str) -> None:
        """Do entries as they come.

        Raises:
            StoppedError: when the job gets SIGTERM.
        """
        idle_since = time.monotonic()
        queue.give_back(job)  # a node that failed has given nothing back
        self._at_work = ExitStack()
        with self._at_work:
            teller = _Teller(queue, job)
            pool = self._at_work.enter_context(Pool(slots, teller, self._start, SAVE_S))
            while True:
                if entries := list(_taken(queue, job, len(slots))):
                    with self._listed(entries[0].tasks[0]) as teller.listener:
                        _do(entries, pool, teller)
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since >= self.idle_s:
                    return
                else:
                    time.sleep(_POLL_S)

    def _listed(self, task: Task) -> AbstractContextManager[ProgressListener]:
        """Return what lists the job for ``ablate status`` while it is at work, if it is to."""
        if not self.is_listed:
            return nullcontext(_Silent())
        return session_file(task.results, task.experiment, _Silent())

    def _start(self, device: Device, group: TaskGroup) -> LocalProcess:
        """Start a worker, which SIGUSR2 does not reach: it would be the end of it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        try:
            return LocalProcess(device, group[0].log, self.command)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(_: int, __: FrameType | None) -> None:
    raise StoppedError("the job was asked to stop")


def _kind(facts: DeviceFacts) -> str:
    return f"{facts.hardware['device_name']} ({facts.hardware['cpu_kind']})"


def _taken(queue: TaskQueue, job: str, n_slots: int) -> Iterator[Entry]:
    """Take entries that are done at the same time, or one with probes."""
    while n_slots > 0 and (entry := queue.take(job)):
        yield entry
        n_slots -= entry.n_slots if entry.tasks[0].action == "train" else n_slots


def _do(entries: Sequence[Entry], pool: Pool, teller: _Teller) -> None:
    """Do entries: first probes, one after another, then all training runs."""
    groups = [group for entry in entries for group in entry.groups]
    teller.begin(entries)
    probes = [group for group in groups if group[0].action == "probe"]
    runs = [group for group in groups if group[0].action == "train"]
    for turn in (*([group] for group in probes), runs):
        is_probe = turn is not runs
        for ended in pool.run(turn, is_alone=is_probe, shares_cores=not is_probe):
            teller.over(ended)
    for entry in entries:
        teller.queue.end(entry)


class _Silent:
    """A listener for a job that is not listed."""

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        return

    def started(self, task: Task, device: Device) -> None:
        return

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        return

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        return

    def note(self, text: str) -> None:
        return


class _Teller(_Silent):
    """Writes what it hears from the pool to the messages of a job, and passes it on.

    Args:
        queue: that the tasks come from.
        job: whose messages.

    Attributes:
        listener: hears everything too.
    """

    def __init__(self, queue: TaskQueue, job: str) -> None:
        self.queue, self.job = queue, job
        self.listener: ProgressListener = _Silent()
        self._entry_of: dict[str, str] = {}
        self._last: dict[str, tuple[str, float]] = {}  # phase and time of the last heartbeat

    def begin(self, entries: Sequence[Entry]) -> None:
        """Note of which entry each task is."""
        tasks = [task for entry in entries for task in entry.tasks]
        self._entry_of = {task.key: entry.name for entry in entries for task in entry.tasks}
        what = "measuring" if tasks[0].action == "probe" else "training"
        self.listener.expect(tasks, what, len(tasks))

    def started(self, task: Task, device: Device) -> None:
        self._tell("started", task, device=replace(device, node=socket.gethostname()))
        self.listener.started(task, device)

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        """Write a heartbeat that says something new, or once a second."""
        phase, last = self._last.get(task.key, ("", 0.0))
        now = time.monotonic()
        if phase != heartbeat.phase or heartbeat.largest_batch or now - last >= _HEARTBEAT_S:
            self._last[task.key] = heartbeat.phase, now
            self._tell("heartbeat", task, heartbeat=heartbeat)
        self.listener.heartbeat(task, heartbeat)

    def over(self, outcome: TaskOutcome) -> None:
        """Write how a task ended."""
        fields = {
            "failure": outcome.failure,
            "reason": outcome.reason,
            "shared_device": outcome.shared_device,
            "largest_batch": outcome.largest_batch,
        }
        self._tell("ended", outcome.task, outcome=fields)
        is_good = outcome.failure is None
        self.listener.ended(outcome.task, outcome.reason or "done", is_good=is_good)

    def _tell(
        self, kind: Literal["started", "heartbeat", "ended"], task: Task, **more: Any
    ) -> None:
        self.queue.tell(JobMessage(kind, self._entry_of[task.key], task.key, self.job, **more))
