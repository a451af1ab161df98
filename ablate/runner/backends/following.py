"""Following what the jobs of a queue do, until all of it has ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ablate.runner.backends import slurm_cluster
from ablate.runner.backends.contract import ClusterError
from ablate.runner.backends.task_queue import Entry, JobMessage, TaskQueue
from ablate.runner.devices import Device
from ablate.runner.failures import Failure
from ablate.runner.listener import ProgressListener
from ablate.runner.retries import TaskOutcome
from ablate.runner.task import Heartbeat, Task

_POLL_S = 0.2
_CHECK_S = {"slurm": 15.0, "local": 1.0}
_MOST_LOSSES = 3
"""How often a task may be lost with its job before it counts as the reason."""
_FAILURES: dict[str, Failure] = {"OUT_OF_MEMORY": "killed", "CANCELLED": "other"}


class Following:
    """Passes on what the jobs of a queue tell, and notices when they are gone.

    Args:
        queue: that the jobs take entries from.
        listener: hears of tasks that start and of what they do.
        logs: the folder of the logs of jobs.
        submit: submits jobs for so many worker slots, if there are too few; without it entries
            that no job is left for are given up.
    """

    def __init__(
        self,
        queue: TaskQueue,
        listener: ProgressListener,
        logs: Path,
        submit: Callable[[int], None] | None = None,
    ) -> None:
        self._queue, self._listener, self._logs, self._submit = queue, listener, logs, submit
        self._tasks: dict[tuple[str, str], Task] = {}  # by entry and key
        self._started: set[tuple[str, str]] = set()
        self._largest: dict[str, int | None] = {}
        self._losses: Counter[str] = Counter()
        self._known: set[str] = set()  # jobs that were over when others were submitted

    def follow(self, entries: Sequence[Entry], *, is_waiting: bool = True) -> Iterator[TaskOutcome]:
        """Yield how each task of some entries ends.

        Args:
            entries: of the queue.
            is_waiting: whether to wait for those at work.

        Raises:
            ClusterError: if jobs end before they take anything.
        """
        self._tasks = {(entry.name, task.key): task for entry in entries for task in entry.tasks}
        names = {entry.name for entry in entries}
        check_at = 0.0
        while True:
            is_checked = time.monotonic() >= check_at
            over = self._over() if is_checked else {}
            yield from self._pass_on_all()
            if is_checked:
                yield from self._missing(names, over)
                _, cluster = self._queue.jobs()
                check_at = time.monotonic() + _CHECK_S.get(cluster, 1.0)
            if not is_waiting or not (self._tasks or self._is_open(names)):
                return
            time.sleep(_POLL_S)

    def _is_open(self, names: set[str]) -> bool:
        """Return whether a job has something to do of entries, be it a round that is no news."""
        return any(entry.name in names and not entry.is_over for entry in self._queue.entries())

    def _over(self) -> dict[str, str]:
        jobs, cluster = self._queue.jobs()
        return slurm_cluster.ended(jobs, cluster)

    def _pass_on_all(self) -> Iterator[TaskOutcome]:
        for message in self._queue.read():
            task = self._tasks.get((message.entry, message.key))
            if task is not None:
                yield from self._pass_on(message, task)

    def _pass_on(self, message: JobMessage, task: Task) -> Iterator[TaskOutcome]:
        which = message.entry, message.key
        if message.kind == "started" or which not in self._started:
            self._started.add(which)
            self._listener.started(task, message.device or Device(task.device, node=message.job))
        if message.heartbeat is not None:
            self._heartbeat(task, message.heartbeat)
        if message.kind == "ended":
            del self._tasks[which]
            yield TaskOutcome(task, **message.outcome)

    def _heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        if heartbeat.largest_batch is not None:
            self._largest[task.key] = heartbeat.largest_batch
        self._listener.heartbeat(task, heartbeat)

    def _missing(self, names: set[str], over: dict[str, str]) -> Iterator[TaskOutcome]:
        """Yield what was lost with its job, and see to it that what waits has jobs.

        Args:
            names: of the entries that are followed.
            over: jobs that had ended before the last messages were read, with their states.
        """
        jobs, _ = self._queue.jobs()
        is_deserted = len(over) == len(jobs)
        n_needed = 0
        for entry in self._queue.entries():
            if entry.name not in names or entry.is_over:
                continue
            if entry.job in over:
                self._queue.end(entry)
                yield from self._lost(entry, f"job {entry.job}: {over[entry.job]}")
            elif not entry.job and is_deserted and self._submit is None:
                self._queue.end(entry)
                self._forget(entry)
            else:
                n_needed += entry.n_slots if entry.tasks else 0
        if n_needed and self._submit is not None:
            if is_deserted:
                self._check_jobs(over)
            self._submit(n_needed)

    def _forget(self, entry: Entry) -> None:
        for task in entry.tasks:
            self._tasks.pop((entry.name, task.key), None)

    def _lost(self, entry: Entry, reason: str) -> Iterator[TaskOutcome]:
        """Yield how the tasks of an entry ended that had not when their job did."""
        left = [task for task in entry.tasks if (entry.name, task.key) in self._tasks]
        self._forget(entry)
        state = reason.rpartition(" ")[2]
        for task in left:
            if (entry.name, task.key) not in self._started:
                self._listener.started(task, Device(task.device, node=entry.job))
            self._losses[task.key] += 1
            is_often = self._losses[task.key] >= _MOST_LOSSES
            failure = _FAILURES.get(state, "other" if is_often else "process_lost")
            largest = self._largest.get(task.key)
            yield TaskOutcome(task, failure, reason, len(left) > 1, largest)

    def _check_jobs(self, over: dict[str, str]) -> None:
        """Refuse to submit jobs once more if none of the last ones has begun.

        Raises:
            ClusterError: with the last line of one of them.
        """
        new = [job for job in over if job not in self._known]
        self._known |= set(new)
        if new and not any(self._queue.has_begun(job) for job in new):
            line = slurm_cluster.last_line(new[-1], self._logs)
            raise ClusterError(
                f"job {new[-1]} ended before it began ({over[new[-1]]}): "
                f"{line or 'it printed nothing'}; logs: {self._logs}"
            )
