"""The backend of a Slurm cluster: a job array whose jobs take groups of tasks from a folder.

<results>/slurm/logs/           what the jobs print, and submitit's files
<results>/slurm/<time>-<pid>/   the queue of one call, see `task_queue`
<results>/slurm/devices.json    the device of jobs, by the options that choose nodes

The jobs do not need the process that has submitted them; a later call can follow them.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ablate.errors import DetachedError
from ablate.hashing import sha256_of_text
from ablate.printable import printable
from ablate.runner.backends import slurm_cluster
from ablate.runner.backends.contract import Backend, BackendRequest, ClusterError
from ablate.runner.backends.job_follower import JobFollower
from ablate.runner.backends.slurm_cluster import read_options
from ablate.runner.backends.slurm_job import QueueJob
from ablate.runner.backends.task_queue import Entry, TaskQueue, read_json
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.failures import TaskOutcome
from ablate.runner.task import ProgressListener, Task, TaskGroup
from ablate.store import write_whole
from ablate.wording import counted

_IDLE_S = 60.0  # that a job waits for further entries, as between two rounds of probes
_POLL_S = 0.5


class SlurmBackend(Backend):
    """Submits workers to a Slurm cluster that shares the folder of results."""

    def __init__(self, request: BackendRequest) -> None:
        self.options = read_options(request.options)
        self.results = request.results.absolute()
        self._folder = self.results / "slurm"
        self.logs = self._folder / "logs"
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
        self.queue = TaskQueue(self._folder / name)
        self._request, self.stall_after = request, request.stall_after
        self._submitted: list[Any] = []
        self._running_elsewhere: set[str] = set()  # keys of tasks in jobs of earlier calls
        self._earlier_jobs: list[str] = []  # jobs of earlier calls that are followed
        self._detached: list[Entry] = []  # that go on after this process
        self._remove_finished_queues()
        self._n_slots = 1  # of a job
        facts, self._n_slots = self._cached_facts() or self._query_device()
        kind = facts.hardware["device"]
        self.worker_slots = tuple(
            Device(kind, None if kind == "cpu" else index, f"job {number}", facts)
            for number in range(self.options.n_jobs)
            for index in range(self._n_slots)
        )

    @contextmanager
    def pool(self, listener: ProgressListener) -> Iterator[SlurmPool]:
        """Yield the pool; an error that ends it cancels the jobs, unless they are detached."""
        try:
            yield SlurmPool(self, listener)
        except DetachedError:
            raise
        except BaseException:
            self.stop()
            raise

    def close(self) -> None:
        """Cancel pending jobs and remove the queue, which ends idle jobs, unless detached."""
        if not self._detached:
            slurm_cluster.cancel(self.jobs, self.options.cluster, only_pending=True)
            self.queue.remove()
            slurm_cluster.remove_pickles(self.jobs, self.logs)

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs that this call has submitted."""
        return [job.job_id for job in self._submitted]

    def submit(self, n_runs: int, idle_s: float = _IDLE_S) -> list[str]:
        """Submit the jobs that are missing for ``n_runs`` runs at the same time."""
        ended = slurm_cluster.ended_jobs(self.jobs, self.options.cluster)
        n_needed = min(math.ceil(n_runs / self._n_slots), self.options.n_jobs)
        n_new = n_needed - (len(self._submitted) - len(ended))
        if n_new <= 0:
            return []
        self.queue.create()
        is_listed = self.options.is_detached
        job = QueueJob(self.queue.folder, self._request, idle_s, is_listed)
        new = slurm_cluster.submit(job, n_new, self.options, self.logs)
        self._submitted += new
        self.queue.save_jobs(self.jobs, self.options.cluster)
        return [each.job_id for each in new]

    def reattach(self, tasks: Sequence[Task], listener: ProgressListener) -> Iterator[TaskOutcome]:
        """Follow these tasks in jobs of earlier calls; with --detach, as far as they have come."""
        keys = {task.key for task in tasks} | {task.probe for task in tasks}
        for queue in self._earlier_queues():
            entries = [e for e in queue.entries() if keys & {task.key for task in e.tasks}]
            if all(entry.is_over for entry in entries):
                continue
            jobs, _ = queue.jobs()
            self._earlier_jobs += jobs
            remaining = [task for entry in entries for task in entry.tasks if not entry.is_over]
            what = f"{counted(len(remaining), 'task')} of an earlier call: {_describe_jobs(jobs)}"
            listener.expect(remaining, what, len(jobs))
            follower = JobFollower(queue, listener, self.logs, stall_after=self.stall_after)
            yield from follower.follow(entries, is_blocking=not self.options.is_detached)
            unfinished = [entry for entry in queue.entries() if not entry.is_over]
            self._running_elsewhere |= {task.key for entry in unfinished for task in entry.tasks}
            self._remove_finished_queues()

    def detach(self, work: Sequence[Sequence[TaskGroup]]) -> None:
        """With --detach submit jobs for all groups, and raise; otherwise do nothing."""
        if not self.options.is_detached:
            return
        elsewhere = self._running_elsewhere | {
            task.key for entry in self._detached for task in entry.tasks if task.action == "train"
        }
        left = [
            [tuple(task for task in group if task.key not in elsewhere) for group in groups]
            for groups in work
        ]
        remaining = [groups for of_job in left if (groups := [group for group in of_job if group])]
        if not remaining and not elsewhere:
            return
        self.queue.create()
        entries = [Entry(self.queue.add(groups), groups) for groups in remaining]
        entries = [*self._detached, *entries]  # of all contexts
        self.submit(sum(entry.n_slots for entry in entries), idle_s=0.0)
        self._detached = entries
        n_tasks = sum(len(entry.tasks) for entry in entries)
        is_fresh = any(task.fresh for groups in work for group in groups for task in group)
        options = "--detach and --fresh" if is_fresh else "--detach"
        what = f"{counted(n_tasks, 'task')} submitted" if n_tasks else "all tasks are running"
        raise DetachedError(
            f"{what}: {_describe_jobs([*self._earlier_jobs, *self.jobs])}\n"
            f"the same command without {options} follows them and prints the table; `squeue` lists "
            f"jobs that wait, and `ablate status --results {self.results}` says how far those are "
            f"that have begun; logs: {self.logs}"
        )

    def _earlier_queues(self) -> list[TaskQueue]:
        """The queues of other calls, the oldest first."""
        files = sorted(self._folder.glob("*/jobs.json"))
        return [TaskQueue(f.parent) for f in files if f.parent != self.queue.folder]

    def _remove_finished_queues(self) -> None:
        """Remove the queues of earlier calls whose entries and jobs have all ended."""
        for queue in self._earlier_queues():
            jobs, cluster = queue.jobs()
            is_open = any(not entry.is_over for entry in queue.entries())
            if not is_open and len(slurm_cluster.ended_jobs(jobs, cluster)) == len(jobs):
                queue.remove()
                slurm_cluster.remove_pickles(jobs, self.logs)

    def stop(self) -> None:
        """Cancel the jobs of this call, which save checkpoints; print which earlier ones go on."""
        if self.jobs:
            slurm_cluster.cancel(self.jobs, self.options.cluster)
            _print(f"{_describe_jobs(self.jobs)} cancelled; with --detach they would go on")
        if self._earlier_jobs:
            _print(
                f"{_describe_jobs(self._earlier_jobs)} of an earlier call go on; scancel ends them"
            )

    def _cached_facts(self) -> tuple[DeviceFacts, int] | None:
        device = read_json(self._folder / "devices.json").get(self._kind_of_nodes)
        if device is None:
            return None
        facts, n_slots = DeviceFacts(**device["facts"]), device["n_slots"]
        self.queue.create()
        self.queue.save_facts(facts, n_slots)
        return facts, n_slots

    def _query_device(self) -> tuple[DeviceFacts, int]:
        """Submit a first job; return the device that it reports, and how many slots it has."""
        (job,) = self.submit(1)
        _print(f"waiting for the device of job {job}; logs: {slurm_cluster.log_of(job, self.logs)}")
        try:
            while (answer := self.queue.facts())[0] is None:
                if slurm_cluster.ended_jobs([job], self.options.cluster):
                    line = slurm_cluster.last_line(job, self.logs) or "it printed nothing"
                    raise ClusterError(f"job {job} ended before it began: {line}")
                time.sleep(_POLL_S)
        except BaseException:
            slurm_cluster.cancel([job], self.options.cluster)
            self.queue.remove()
            raise
        file = self._folder / "devices.json"
        facts, n_slots = answer
        assert facts is not None, "the loop above waits for them"
        device = read_json(self.queue.folder / "device.json")
        content = {**read_json(file), self._kind_of_nodes: device}
        write_whole(file, json.dumps(content, indent=1) + "\n")
        return facts, n_slots

    @property
    def _kind_of_nodes(self) -> str:
        """A hash of all options that decide which nodes are used."""
        content = [
            self.options.cluster,
            self.options.node_parameters,
            self._request.device,
            self._request.jobs,
        ]
        return sha256_of_text(json.dumps(content, sort_keys=True))[:16]


def open_backend(request: BackendRequest) -> SlurmBackend:
    """Return the backend of the cluster that this machine submits to."""
    return SlurmBackend(request)


class SlurmPool:
    """A `WorkerPool` of the jobs of one call."""

    def __init__(self, backend: SlurmBackend, listener: ProgressListener) -> None:
        self._backend, self._listener = backend, listener
        self._follower = JobFollower(  # which counts how often each task is lost
            backend.queue, listener, backend.logs, self._submit, backend.stall_after
        )

    def run(self, groups: Iterable[TaskGroup]) -> Iterator[TaskOutcome]:
        queue = self._backend.queue
        queue.create()
        entries = [Entry(queue.add([group]), [group]) for group in groups]
        self._submit(sum(entry.n_slots for entry in entries))
        yield from self._follower.follow(entries)

    def _submit(self, n_runs: int) -> None:
        if new := self._backend.submit(n_runs):
            self._listener.note(f"{_describe_jobs(new)} submitted; logs: {self._backend.logs}")


def _describe_jobs(jobs: Sequence[str]) -> str:
    arrays = sorted({job.partition("_")[0] for job in jobs})
    return f"{counted(len({*jobs}), 'job')} ({', '.join(arrays)})"


def _print(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
