"""The backend of a Slurm cluster: a job array whose jobs take groups of tasks from a folder.

<results>/slurm/logs/           what the jobs print, and submitit's files
<results>/slurm/<time>-<pid>/   the queue of one call, see `task_queue`
<results>/slurm/devices.json    what jobs with the same options compute on

The jobs go on without the process that has submitted them, and a later call follows what they do.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from ablate.errors import DetachedError
from ablate.hashing import sha256_of_text
from ablate.runner.backends import slurm_cluster
from ablate.runner.backends.contract import Backend, BackendRequest, ClusterError
from ablate.runner.backends.following import Following
from ablate.runner.backends.slurm_job import QueueJob
from ablate.runner.backends.slurm_options import read_options
from ablate.runner.backends.task_queue import Entry, TaskQueue
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.listener import ProgressListener
from ablate.runner.packing import TaskGroup
from ablate.runner.retries import TaskOutcome
from ablate.runner.task import Task
from ablate.store import write_whole
from ablate.wording import counted

_IDLE_S = 60.0  # between two rounds of probes, or until a failed run is repeated
_POLL_S = 0.5


class SlurmBackend(Backend):
    """Submits workers to a Slurm cluster that shares the folder of results.

    Args:
        request: with what is asked of the jobs.

    Raises:
        SpecError: if an option makes no sense.
        ClusterError: if the cluster takes no jobs, or the first job fails.
    """

    def __init__(self, request: BackendRequest) -> None:
        self.options = read_options(request.options)
        self.results = request.results.absolute()
        self.logs = _folder(self.results) / "logs"
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
        self.queue = TaskQueue(_folder(self.results) / name)
        self._request = request
        self._submitted: list[Any] = []
        self._left_at_work: set[str] = set()  # keys of tasks that jobs of earlier calls have
        self._others: list[str] = []  # jobs of earlier calls that are followed
        self._leaves = False
        self._tidy()
        self._n_slots = 1  # of a job
        facts, self._n_slots = self._known_facts() or self._ask()
        kind = facts.hardware["device"]
        self.worker_slots = tuple(
            Device(kind, None if kind == "cpu" else index, f"job {number}", facts)
            for number in range(self.options.n_jobs)
            for index in range(self._n_slots)
        )

    def pool(self, listener: ProgressListener, grace_s: float) -> SlurmPool:
        return SlurmPool(self, listener)

    def close(self) -> None:
        """Have the jobs end that have nothing to do, unless they go on without this process."""
        if not self._leaves:
            slurm_cluster.cancel(self.jobs, self.options.cluster, is_waiting=True)
            self.queue.remove()
            slurm_cluster.remove_pickles(self.jobs, self.logs)

    @property
    def jobs(self) -> list[str]:
        """Return the ids of the jobs that this call has submitted."""
        return [job.job_id for job in self._submitted]

    def submit(self, n_runs: int, idle_s: float = _IDLE_S) -> list[str]:
        """Submit as many jobs as runs need, but for those that are there.

        Args:
            n_runs: worker slots that are needed at the same time.
            idle_s: how long a job waits for more.

        Returns:
            The ids of new jobs.
        """
        over = slurm_cluster.ended(self.jobs, self.options.cluster)
        n_wanted = min(math.ceil(n_runs / self._n_slots), self.options.n_jobs)
        n_new = n_wanted - (len(self._submitted) - len(over))
        if n_new <= 0:
            return []
        self.queue.make()
        job = QueueJob(
            folder=self.queue.folder,
            device=self._request.device,
            jobs=self._request.jobs,
            idle_s=idle_s,
            is_listed=self.options.is_detached,
        )
        new = slurm_cluster.submit(job, n_new, self.options, self.logs)
        self._submitted += new
        self.queue.save_jobs(self.jobs, self.options.cluster)
        return [each.job_id for each in new]

    def rejoin(self, tasks: Sequence[Task], listener: ProgressListener) -> Iterator[TaskOutcome]:
        """Follow what earlier calls have left at work of these tasks; yield how it ends.

        A call that is to leave again only looks.
        """
        keys = {task.key for task in tasks} | {task.probe for task in tasks}
        for queue in self._earlier():
            entries = [e for e in queue.entries() if keys & {task.key for task in e.tasks}]
            if all(entry.is_over for entry in entries):
                continue
            jobs, _ = queue.jobs()
            self._others += jobs
            left = [task for entry in entries for task in entry.tasks if not entry.is_over]
            what = f"{counted(len(left), 'task')} of an earlier call: {_named(jobs)}"
            listener.expect(left, what, len(jobs))
            following = Following(queue, listener, self.logs)
            yield from following.follow(entries, is_waiting=not self.options.is_detached)
            open_ = [entry for entry in queue.entries() if not entry.is_over]
            self._left_at_work |= {task.key for entry in open_ for task in entry.tasks}
            self._tidy()

    def leave(self, work: Sequence[Sequence[TaskGroup]]) -> None:
        """Submit jobs for entries and leave, if that was asked for.

        Raises:
            DetachedError: says how to follow the jobs.
        """
        if not self.options.is_detached:
            return
        remaining = [[g for g in groups if not self._is_at_work(g)] for groups in work]
        remaining = [groups for groups in remaining if groups]
        if not remaining and not self._left_at_work:
            return
        self.queue.make()
        entries = [Entry(self.queue.add(groups), groups) for groups in remaining]
        self.submit(sum(entry.n_slots for entry in entries), idle_s=0.0)
        self._leaves = bool(self.jobs)
        n_tasks = sum(len(group) for groups in remaining for group in groups)
        what = f"{counted(n_tasks, 'task')} submitted" if n_tasks else "everything is at work"
        raise DetachedError(
            f"{what}: {_named([*self._others, *self.jobs])}\n"
            "the same command without --detach follows them and prints the table; "
            f"`ablate status --results {self.results}` says how far they are; logs: {self.logs}"
        )

    def _is_at_work(self, group: TaskGroup) -> bool:
        return any(task.key in self._left_at_work for task in group)

    def _earlier(self) -> list[TaskQueue]:
        """Return the queues of other calls, the oldest first."""
        files = sorted(_folder(self.results).glob("*/jobs.json"))
        return [TaskQueue(f.parent) for f in files if f.parent != self.queue.folder]

    def _tidy(self) -> None:
        """Remove the queues of calls of which nothing is left to do and every job has ended."""
        for queue in self._earlier():
            jobs, cluster = queue.jobs()
            is_open = any(not entry.is_over for entry in queue.entries())
            if not is_open and len(slurm_cluster.ended(jobs, cluster)) == len(jobs):
                queue.remove()
                slurm_cluster.remove_pickles(jobs, self.logs)

    def stop(self) -> None:
        """Cancel the jobs of this call, which keep what they have; say which others go on."""
        if self.jobs:
            slurm_cluster.cancel(self.jobs, self.options.cluster)
            _print(f"{_named(self.jobs)} cancelled; with --detach they would go on")
        if self._others:
            _print(f"{_named(self._others)} of an earlier call go on; scancel ends them")

    def _known_facts(self) -> tuple[DeviceFacts, int] | None:
        known = _read(_folder(self.results) / "devices.json").get(self._kind_of_nodes)
        if known is None:
            return None
        facts, n_slots = DeviceFacts(**known["facts"]), known["n_slots"]
        self.queue.make()
        self.queue.save_facts(facts, n_slots)
        return facts, n_slots

    def _ask(self) -> tuple[DeviceFacts, int]:
        """Submit a first job, and wait until it says what it computes on."""
        (job,) = self.submit(1)
        _print(
            f"job {job} will say what its device is; logs: {slurm_cluster.log_of(job, self.logs)}"
        )
        try:
            while (known := self.queue.facts())[0] is None:
                if slurm_cluster.ended([job], self.options.cluster):
                    line = slurm_cluster.last_line(job, self.logs) or "it printed nothing"
                    raise ClusterError(f"job {job} ended before it began: {line}")
                time.sleep(_POLL_S)
        except BaseException:
            slurm_cluster.cancel([job], self.options.cluster)
            self.queue.remove()
            raise
        file = _folder(self.results) / "devices.json"
        facts, n_slots = known
        assert facts is not None, "a job has told them"
        of_nodes = {"facts": asdict(facts), "n_slots": n_slots}
        content = {**_read(file), self._kind_of_nodes: of_nodes}
        write_whole(file, json.dumps(content, indent=1) + "\n")
        return facts, n_slots

    @property
    def _kind_of_nodes(self) -> str:
        """Return 16 hex digits for all that decides on which nodes the jobs are made."""
        known = [
            self.options.cluster,
            self.options.of_nodes,
            self._request.device,
            self._request.jobs,
        ]
        return sha256_of_text(json.dumps(known, sort_keys=True))[:16]


def open_backend(request: BackendRequest) -> SlurmBackend:
    """Return the backend of the cluster that this machine submits to.

    Raises:
        SpecError: if an option makes no sense.
        ClusterError: if the cluster takes no jobs, or the first job fails.
    """
    return SlurmBackend(request)


class SlurmPool:
    """A `WorkerPool` of the jobs of one call.

    Args:
        backend: submits the jobs.
        listener: hears of tasks that start and of what they do.
    """

    def __init__(self, backend: SlurmBackend, listener: ProgressListener) -> None:
        self._backend, self._listener = backend, listener

    def __enter__(self) -> SlurmPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel the jobs if the work ends before its time, unless they go on without us."""
        if error is not None and not isinstance(error, DetachedError):
            self._backend.stop()

    def run(
        self, groups: Iterable[TaskGroup], *, is_alone: bool = False, shares_cores: bool = True
    ) -> Iterator[TaskOutcome]:
        """Do all tasks, the first groups first; yield each when it has ended.

        Every job has devices of its own, so that a group is alone there in any case.

        Raises:
            ClusterError: if jobs end before they take anything.
        """
        queue = self._backend.queue
        queue.make()
        entries = [Entry(queue.add([group]), [group]) for group in groups]
        self._submit(sum(entry.n_slots for entry in entries))
        following = Following(queue, self._listener, self._backend.logs, self._submit)
        yield from following.follow(entries)

    def _submit(self, n_runs: int) -> None:
        if new := self._backend.submit(n_runs):
            self._listener.note(f"{_named(new)} submitted; logs: {self._backend.logs}")


def _folder(results: Path) -> Path:
    return results / "slurm"


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


def _named(jobs: Sequence[str]) -> str:
    arrays = sorted({job.partition("_")[0] for job in jobs})
    return f"{counted(len(jobs), 'job')} ({', '.join(arrays)})"


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
