"""Monitoring of the jobs of a queue, until all of its entries have ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ablate.runner.backends import slurm_cluster
from ablate.runner.backends.contract import ClusterError
from ablate.runner.backends.task_queue import Entry, JobMessage, TaskQueue
from ablate.runner.devices import Device
from ablate.runner.failures import TaskOutcome
from ablate.runner.task import Failure, ProgressListener, Silence, Task, append_to_log
from ablate.runner.watchdog import Watchdog, silence_text

_POLL_S = 0.2
_CHECK_S = {"slurm": 15.0, "local": 1.0}
_DELAY_S = 60.0  # that messages may take through a file system of several machines
_MAX_LOSSES = 3
"""A task that is lost with its job so often is assumed to be the cause, and fails."""
_FAILURES: dict[str, Failure] = {"OUT_OF_MEMORY": "killed", "CANCELLED": "other"}


class JobFollower:
    """Relays the messages of a queue's jobs to a listener, and detects jobs that have ended.

    ``submit`` submits jobs for so many worker slots; without it entries are given up when no job is
    left. A job watches its own workers; one that is silent itself, for longer than these may be
    (``stall_after``), is killed.
    """

    def __init__(
        self,
        queue: TaskQueue,
        listener: ProgressListener,
        logs: Path,
        submit: Callable[[int], None] | None = None,
        stall_after: float | None = None,
    ) -> None:
        # of entries and their jobs
        self._watchdog: Watchdog[tuple[str, str]] = Watchdog(stall_after, delay_s=_DELAY_S)
        self._stalled: dict[str, str] = {}  # jobs that were killed, with the reason
        self._queue, self._listener, self._logs, self._submit = queue, listener, logs, submit
        self._tasks: dict[tuple[str, str], Task] = {}  # by entry and key
        self._started: set[tuple[str, str]] = set()
        self._largest_batches: dict[str, int | None] = {}
        self._losses: Counter[str] = Counter()  # of each task, in all of its attempts
        self._closed: set[str] = set()  # entries that were over at the last check, with unread ends
        self._jobs_before: set[str] = set()  # that had ended before the last ones were submitted

    def follow(
        self, entries: Sequence[Entry], *, is_blocking: bool = True
    ) -> Iterator[TaskOutcome]:
        """Yield the outcome of each task of some entries."""
        self._tasks = {(entry.name, task.key): task for entry in entries for task in entry.tasks}
        self._largest_batches = {}
        names = {entry.name for entry in entries}
        check_at = 0.0
        while True:
            is_checked = time.monotonic() >= check_at
            jobs, cluster = self._queue.jobs()
            # Of jobs that have ended by now, the messages below are the last
            ended_jobs = slurm_cluster.ended_jobs(jobs, cluster) if is_checked else {}
            for message in self._queue.read_messages():
                task = self._tasks.get((message.entry, message.key))
                job = message.entry, message.job
                self._watch(job)
                if message.heartbeat is not None:
                    self._watchdog.heard(job, message.key, message.heartbeat.phase)
                self._watchdog.answered(job)
                if message.kind == "ended":
                    self._watchdog.ended(job, message.key)
                if task is not None:
                    yield from self._relay(message, task)
            self._check_silence()
            if is_checked:
                yield from self._handle_ended_jobs(names, ended_jobs)
                check_at = time.monotonic() + _CHECK_S.get(cluster, 1.0)
            # An entry with later rounds of a probe goes on after the first outcome of its task
            if not is_blocking or not (
                self._tasks
                or any(each.name in names and not each.is_over for each in self._queue.entries())
            ):
                return
            time.sleep(_POLL_S)

    def _relay(self, message: JobMessage, task: Task) -> Iterator[TaskOutcome]:
        task_id = message.entry, message.key
        if message.kind == "started" or task_id not in self._started:
            self._started.add(task_id)
            self._listener.started(task, message.device or Device(task.device, node=message.job))
        if message.heartbeat is not None:
            if message.heartbeat.largest_batch is not None:
                self._largest_batches[task.key] = message.heartbeat.largest_batch
            self._listener.heartbeat(task, message.heartbeat)
        if message.silence is not None:
            self._listener.stalled(task, message.silence)
        if message.kind == "ended":
            del self._tasks[task_id]
            has_begun = self._largest_batches.get(task.key) is not None  # in an earlier job, too
            yield TaskOutcome(replace(task, fresh=task.fresh and not has_begun), **message.outcome)

    def _check_silence(self) -> None:
        """Report jobs that are silent themselves, and kill them: then they count as lost."""
        _, cluster = self._queue.jobs()
        for due in self._watchdog.overdue():
            entry, job = due.worker
            reason = f"job {job}: {silence_text(due.seconds, due.phases)}"
            if due.action == "kill":
                reason += "; it was killed"
                self._stalled[job] = reason
                slurm_cluster.kill([job], cluster)
            for task in [task for (name, _), task in self._tasks.items() if name == entry]:
                append_to_log(task.log, reason)
                if due.action == "report" and (entry, task.key) in self._started:
                    self._listener.stalled(task, Silence(due.seconds, due.seconds_left))

    def _watch_jobs(self, entries: Sequence[Entry]) -> None:
        """Watch the jobs that have taken entries with tasks that have not ended."""
        open_entries = {name for name, _ in self._tasks}
        taken = {
            (entry.name, entry.job)
            for entry in entries
            if entry.job and not entry.is_over and entry.name in open_entries
        }
        for job in set(self._watchdog.watched) - taken:
            self._watchdog.forget(job)
        for job in taken:
            self._watch(job)

    def _watch(self, job: tuple[str, str]) -> None:
        keys = [key for entry, key in self._tasks if entry == job[0]]
        if keys and job not in self._watchdog.watched:
            self._watchdog.watch(job, keys)

    def _handle_ended_jobs(
        self, names: set[str], ended_jobs: dict[str, str]
    ) -> Iterator[TaskOutcome]:
        """Yield the tasks that were lost with their job, and submit jobs for waiting entries."""
        jobs, _ = self._queue.jobs()
        has_no_jobs = len(ended_jobs) == len(jobs)
        n_needed = 0
        entries = self._queue.entries()
        yield from self._given_up(entries)
        self._watch_jobs(entries)
        for entry in entries:
            if entry.name not in names or entry.is_over:
                continue
            if entry.job in ended_jobs:
                self._queue.mark_ended(entry)
                state = ended_jobs[entry.job]
                yield from self._lost(entry, f"job {entry.job}: {state}", _FAILURES.get(state))
            elif not entry.job and has_no_jobs and self._submit is None:
                self._queue.mark_ended(entry)
                self._forget(entry.name)
            else:
                n_needed += entry.n_slots if entry.tasks else 0
        if n_needed and self._submit is not None:
            if has_no_jobs:
                self._check_jobs(ended_jobs)
            self._submit(n_needed)

    def _given_up(self, entries: Sequence[Entry]) -> Iterator[TaskOutcome]:
        """Yield the tasks whose outcome cannot come, since another call has ended their entries.

        What a job has written is read by the next check after it has ended an entry.
        """
        of_tasks = {name for name, _ in self._tasks}
        closed = of_tasks - {entry.name for entry in entries if not entry.is_over}
        for given_up in sorted(closed & self._closed):
            yield from self._lost(Entry(given_up, []), "another call has given it up")
        self._closed = closed

    def _forget(self, entry: str) -> list[Task]:
        """Remove the tasks of an entry that have not ended; return them, of each probe one."""
        return [self._tasks.pop(each) for each in list(self._tasks) if each[0] == entry]

    def _lost(
        self, entry: Entry, reason: str, failure: Failure | None = None
    ) -> Iterator[TaskOutcome]:
        """Yield the outcomes of an entry's tasks that had not ended when their job did.

        Without a ``failure`` they are repeated, up to `_MAX_LOSSES` times.
        """
        if entry.job in self._stalled:
            failure, reason = "stalled", self._stalled[entry.job]
        unfinished = self._forget(entry.name)
        for task in unfinished:
            if (entry.name, task.key) not in self._started:
                self._listener.started(task, Device(task.device, node=entry.job))
            self._losses[task.key] += 1
            is_often = self._losses[task.key] >= _MAX_LOSSES
            of_task = failure or ("other" if is_often else "process_lost")
            largest = self._largest_batches.get(task.key)
            yield TaskOutcome(task, of_task, reason, len(unfinished) > 1, largest)

    def _check_jobs(self, ended_jobs: dict[str, str]) -> None:
        """Check that one of the jobs submitted last has begun, before others are submitted."""
        new = [job for job in ended_jobs if job not in self._jobs_before]
        self._jobs_before |= set(new)
        if new and not any(self._queue.has_started(job) for job in new):
            line = slurm_cluster.last_line(new[-1], self._logs)
            raise ClusterError(
                f"job {new[-1]} ended before it began ({ended_jobs[new[-1]]}): "
                f"{line or 'it printed nothing'}; logs: {self._logs}"
            )
