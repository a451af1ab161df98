"""Worker processes: one for every worker slot, each on its device, for one group at a time.

The baseline comes first, then the longest groups, so that the last groups are short (list
scheduling by longest processing time: Graham 1969, SIAM J. Appl. Math. 17(2)). If devices differ in
memory, groups that fit on few of them come before those that fit on more.
"""

from __future__ import annotations

import math
import queue
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from ablate.config import BASELINE
from ablate.errors import RunError
from ablate.processes import exit_reason
from ablate.runner.backends.contract import StartProcess, WorkerProcess
from ablate.runner.devices import Device, memory_mib
from ablate.runner.failures import TaskOutcome, failure_of_exit
from ablate.runner.task import (
    Failure,
    Message,
    ProcessExited,
    ProgressListener,
    Silence,
    Task,
    TaskFinished,
    TaskGroup,
    append_to_log,
)
from ablate.runner.watchdog import Watchdog, silence_text
from ablate.store import writable

GRACE_S = 5.0
USABLE = 0.8
"""Share of a device's memory that runs are packed into. The rest is for the CUDA context, for the
caches of libraries, and for sentences longer than those of the probe."""

_SHARE_OF_LARGEST = 0.9
"""A device with this share of the largest device's memory counts as one of the largest, too."""

_CHECK_S = 1.0  # between two looks at how long workers have been silent
_KILL_S = 10.0  # that a process may take to end after signal 9


class Pool:
    """Runs tasks in worker processes; leaving it stops those that are still at work."""

    def __init__(
        self,
        worker_slots: Iterable[Device],
        listener: ProgressListener,
        start: StartProcess,
        grace_s: float = GRACE_S,
        stall_after: float | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._watchdog: Watchdog[_Worker] = Watchdog(stall_after)
        self._messages: _Messages = queue.SimpleQueue()
        slots = list(worker_slots)
        differ = len(set(slots)) > 1
        self._memory_mib = {slot: memory_mib(slot) if differ else math.inf for slot in slots}
        self._idle = [_Worker(device, start, self._messages) for device in slots]
        self._busy: list[_Worker] = []
        self._listener = listener

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """Ask the workers to stop, and end those that do not within the grace period."""
        for worker in self._busy:
            worker.process.terminate()
        with suppress(KeyboardInterrupt):
            deadline = time.monotonic() + self._grace_s
            for worker in self._busy:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        reserved = chain.from_iterable(worker.reserved for worker in self._busy)
        for worker in (*self._busy, *reserved, *self._idle):
            worker.close()

    def run(self, groups: Iterable[TaskGroup]) -> Iterator[TaskOutcome]:
        groups = list(groups)
        for is_exclusive in (False, True):
            waiting = [group for group in groups if group[0].is_alone == is_exclusive]
            yield from self._run(waiting, is_exclusive=is_exclusive)

    def _run(self, waiting: list[TaskGroup], *, is_exclusive: bool) -> Iterator[TaskOutcome]:
        shares_cores = all(group[0].action == "train" for group in waiting)
        while waiting or self._busy:
            while pair := self._next(waiting, is_exclusive=is_exclusive):
                self._start(*pair)
            if not self._busy:
                raise RunError("every machine that was at work is lost; the next call continues")
            if shares_cores:
                self._share_cores()
            with suppress(queue.Empty):
                yield from self._handle(*self._messages.get(timeout=_CHECK_S))
            if self._messages.empty():
                yield from self._check_silence()

    def _handle(
        self, worker: _Worker, process: WorkerProcess, message: Message
    ) -> Iterator[TaskOutcome]:
        """Yield the outcomes of tasks that have ended with a message of a worker."""
        if worker not in self._busy or worker.process is not process:
            return  # an idle process has ended
        if isinstance(message, ProcessExited):
            yield from self._exited(worker, message)
        elif message.key not in worker.unfinished:
            return
        elif isinstance(message, TaskFinished):
            self._watchdog.ended(worker, message.key)
            yield worker.ended(message)
        else:
            self._watchdog.heard(worker, message.key, message.phase)
            if message.largest_batch is not None:
                worker.largest[message.key] = message.largest_batch
            self._listener.heartbeat(worker.unfinished[message.key], message)

    def _check_silence(self) -> Iterator[TaskOutcome]:
        """Report, kill and abandon workers that have stopped working, as `Watchdog` says."""
        for due in self._watchdog.overdue():
            worker = due.worker
            if worker.process.is_waiting:
                self._watchdog.answered(worker)
                continue
            reason = silence_text(due.seconds, due.phases)
            if due.action == "report":
                append_to_log(worker.log, reason)
                for task in worker.unfinished.values():
                    self._listener.stalled(task, Silence(due.seconds, due.seconds_left))
                if not worker.unfinished:
                    self._listener.note(f"a worker on {worker.device}: {reason}")
                worker.process.print_stacks()
            elif due.action == "kill":
                worker.stalled = f"{reason}; its process was killed"
                append_to_log(worker.log, worker.stalled)
                worker.process.abort()
            else:
                worker.close()
                yield from self._exited(worker, ProcessExited(-signal.SIGKILL))

    def _exited(self, worker: _Worker, message: ProcessExited) -> list[TaskOutcome]:
        """Return how a group ended; its worker slot is free again, unless the machine is lost."""
        self._busy.remove(worker)
        self._watchdog.forget(worker)
        self._idle += worker.reserved
        worker.reserved = []
        if message.lost:
            worker.close()
        else:
            self._idle.append(worker)
        return worker.exited(message)

    def _share_cores(self) -> None:
        """Distribute the cores of idle workers among the running groups of the same CPU."""
        for device in {worker.device for worker in self._busy if worker.device.kind == "cpu"}:
            busy = [worker for worker in self._busy if worker.device == device]
            idle = [worker for worker in self._idle if worker.device == device]
            for number, worker in enumerate(busy):
                n_cores = 1 + len(idle[number :: len(busy)])
                if n_cores != worker.n_cores:
                    worker.n_cores = n_cores
                    worker.process.grant(n_cores)

    def _next(
        self, waiting: list[TaskGroup], *, is_exclusive: bool
    ) -> tuple[TaskGroup, list[_Worker]] | None:
        """Remove and return the next group of ``waiting`` with its workers; None if all must wait.

        Of equal workers, one whose process is running comes first. A group of several devices comes
        before others, and has a worker for each: the first executes it, the others are reserved.
        While it waits for them, no other group begins.
        """
        busy_devices = {worker.device for worker in self._busy} if is_exclusive else ()
        free = [worker for worker in self._idle if worker.device not in busy_devices]
        if not waiting or not free:
            return None
        free.sort(key=lambda worker: (self._memory_mib[worker.device], not worker.is_ready))
        for number, group in enumerate(waiting):
            if (n := group[0].n_devices) > 1:
                free.sort(key=lambda worker: -self._memory_mib[worker.device])
                of_nodes: dict[str, list[_Worker]] = {}
                for worker in free:
                    of_nodes.setdefault(worker.device.node, []).append(worker)
                chosen = next((each[:n] for each in of_nodes.values() if len(each) >= n), None)
                return (waiting.pop(number), chosen) if chosen else None
        memories = [self._memory_mib[worker.device] for worker in (*free, *self._busy)]
        for worker in free:
            first = next_group(waiting, self._memory_mib[worker.device], memories)
            if first is not None:
                return waiting.pop(first), [worker]
        return None

    def _start(self, group: TaskGroup, workers: Sequence[_Worker]) -> None:
        worker, *reserved = workers
        others = [other for other in self._busy if other.device == worker.device]
        worker.reserved = reserved
        worker.begin(group)
        for each in workers:
            self._idle.remove(each)
        self._busy.append(worker)
        self._watchdog.watch(worker, worker.unfinished)
        for each in (*others, worker):
            each.shared_device |= bool(others)
        for task in group:
            self._listener.started(task, worker.device)


class _Worker:
    """A worker slot, and its process, which is started when there is a group to execute."""

    def __init__(self, device: Device, start: StartProcess, messages: _Messages) -> None:
        self.device = device
        self.unfinished: dict[str, Task] = {}  # the tasks that have not ended yet, by their keys
        self.shared_device = False  # whether another group has run on it since this one began
        self.reserved: list[_Worker] = []  # idle meanwhile, because the group uses their devices
        self.stalled = ""  # why the process was killed, if it had stopped working
        self.largest: dict[str, int] = {}  # sentences in the largest batch of each task
        self._failed: Task | None = None  # whose failure has ended the process of all others
        self._seen = device, 1  # by the process: the devices, and how many
        self._start = start
        self.n_cores = 1  # of the CPU, that the group may keep busy
        self._messages = messages
        self._started: tuple[WorkerProcess, threading.Thread] | None = None

    @property
    def process(self) -> WorkerProcess:
        assert self._started is not None, "a busy worker has a process"
        return self._started[0]

    @property
    def is_ready(self) -> bool:
        """Whether the process is running; to start one takes seconds."""
        return self._started is not None and self.process.is_running

    def begin(self, group: TaskGroup) -> None:
        self.unfinished = {task.key: task for task in group}
        self.shared_device = len(group) > 1
        self.largest, self._failed, self.stalled = {}, None, ""
        self.n_cores = 1
        self.log = group[0].log
        for task in group:
            text = "" if task is group[0] else f"It shared a process, see {self.log}\n"
            with writable(task.log):
                task.log.parent.mkdir(parents=True, exist_ok=True)
                with task.log.open("a", encoding="utf-8") as log:  # another call may use it, too
                    log.write(text)
        self._n_logged = self.log.stat().st_size
        gpus = [w.device.index for w in self.reserved if w.device.index is not None]
        device = replace(self.device, others=tuple(gpus))
        for worker in self.reserved:  # on a cluster its process may occupy a device of this group
            worker.close()
        seen = device, group[0].n_devices
        if not self.is_ready or seen != self._seen:
            self.close()
        if self._started is None:
            self._seen = seen
            process = self._start(device, group)

            def listen() -> None:  # the last message is the process's exit
                for message in process.messages():
                    self._messages.put((self, process, message))

            thread = threading.Thread(target=listen, daemon=True)
            thread.start()
            self._started = process, thread
        self.process.begin(group)

    def ended(self, ending: TaskFinished) -> TaskOutcome:
        task = self.unfinished.pop(ending.key)
        if ending.failure in ("memory", "engine"):
            self._failed = task
        return self._ended(task, ending.failure, ending.reason)

    def exited(self, message: ProcessExited) -> list[TaskOutcome]:
        """Return the outcomes of the tasks that had not ended when the group's process did."""
        unfinished, self.unfinished = list(self.unfinished.values()), {}
        failure: Failure | None = None
        reason = None
        if self.stalled:
            failure, reason = "stalled", self.stalled
        elif message.lost:
            failure, reason = "process_lost", message.lost
        elif message.status != 0 and self._failed is not None:
            reason = f"its process was ended by a failure of {self._failed.variant}"
            failure = "process_lost"
        elif message.status != 0:
            content = b""
            with suppress(FileNotFoundError):  # the run was removed meanwhile
                content = self.log.read_bytes()
            if len(content) >= self._n_logged:  # else of a machine with a folder of its own
                content = content[self._n_logged :]
            log = content.decode("utf-8", errors="replace").strip()
            failure, reason = failure_of_exit(message.status, log), exit_reason(message.status)
            if message.status > 0:
                last = log.splitlines()[-1] if log else "it printed nothing"
                reason = f"the worker ended with {reason}: {last}"
        return [self._ended(task, failure, reason) for task in unfinished]

    def close(self) -> None:
        """Kill the process, which must be idle; one that cannot be killed is left alone."""
        if self._started is None:
            return
        process, thread = self._started
        self._started = None
        process.kill()
        thread.join(_KILL_S)
        if not thread.is_alive():
            process.close()

    def _ended(self, task: Task, failure: Failure | None, reason: str | None) -> TaskOutcome:
        return TaskOutcome(task, failure, reason, self.shared_device, self.largest.get(task.key))


def priority(group: TaskGroup) -> tuple[bool, float]:
    """Return what groups are sorted by: the baseline's runs first, then the longest first."""
    is_first = any(task.variant == BASELINE and task.action == "train" for task in group)
    return not is_first, -sum(task.seconds for task in group)


def next_group(
    waiting: Sequence[TaskGroup], memory_mib: float, memories: Collection[float]
) -> int | None:
    """Return which of the ``waiting`` groups a device of this memory executes next, if any fits."""
    least = [least_memory(sum(task.memory_mib for task in group), memories) for group in waiting]

    def urgency(number: int) -> tuple[bool, float, float]:
        is_later, duration = priority(waiting[number])
        return is_later, -least[number], duration

    fitting = (number for number in range(len(waiting)) if least[number] <= memory_mib)
    return min(fitting, key=urgency, default=None)


def least_memory(needed_mib: float, memories: Collection[float]) -> float:
    """Return the memory that a device must have for a group that needs ``needed_mib``."""
    sufficient = (memory for memory in memories if needed_mib <= USABLE * memory)
    # What needs more than any device has, or an unknown amount, gets the largest devices
    return min(sufficient, default=_SHARE_OF_LARGEST * max(memories))


_Messages = queue.SimpleQueue[tuple[_Worker, WorkerProcess, Message]]
