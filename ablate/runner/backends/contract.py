"""The contracts of a backend, of its pool of workers, and of one worker process.

A backend whose machines can be talked to starts a `WorkerProcess` for each worker slot and leaves
the rest to `ablate.runner.pool.Pool`. One that hands groups over in another way has a pool of its
own. Whichever it is, the process that does a group is ``python -m ablate.runner``, so that the
numbers of a run do not depend on the backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ablate.errors import AblateError
from ablate.runner.devices import Device
from ablate.runner.listener import ProgressListener
from ablate.runner.packing import TaskGroup
from ablate.runner.retries import TaskOutcome
from ablate.runner.task import Message, Task


class ClusterError(AblateError):
    """A cluster cannot be reached, or what is there cannot make these runs."""


@dataclass(frozen=True)
class BackendRequest:
    """What a backend is opened with.

    Attributes:
        device: as ``--device`` names it.
        jobs: runs at a time: on each GPU, or cores of the CPU; None: as many as there are.
        results: the folder of results.
        options: of this backend alone, by their names.
    """

    device: str = "auto"
    jobs: int | None = None
    results: Path = Path("results")
    options: Mapping[str, str] = field(default_factory=dict)


class Backend(ABC):
    """Where tasks are done.

    A module of this package has a function ``open_backend``, which returns one.

    Attributes:
        worker_slots: one device for each process that may be at work at the same time. All are of
            one kind, so that the speeds of rows can be compared; those on other machines have
            `facts`, because this process cannot ask them.
        remarks: what a user should know of the choice, a sentence each.
    """

    worker_slots: Sequence[Device]
    remarks: Sequence[str] = ()

    @abstractmethod
    def pool(
        self, listener: ProgressListener, grace_s: float
    ) -> AbstractContextManager[WorkerPool]:
        """Return what does tasks; leaving it stops those that are still at work.

        Args:
            listener: hears of tasks that start and of what they do.
            grace_s: how long workers that are asked to stop may take to save what they have.
        """

    def rejoin(self, tasks: Sequence[Task], listener: ProgressListener) -> Iterable[TaskOutcome]:
        """Yield how tasks end that earlier calls have left at work; none unless overridden.

        Args:
            tasks: runs that are wanted, and whose probes are.
            listener: hears of what they do.
        """
        return ()

    def leave(self, work: Sequence[Sequence[TaskGroup]]) -> None:
        """Have groups done without this process, and raise; nothing unless overridden.

        Args:
            work: groups that are taken together, in order.

        Raises:
            DetachedError: says how to follow them.
        """
        return

    def close(self) -> None:
        """Give back what was taken; nothing unless overridden."""
        return


class WorkerPool(Protocol):
    """Does tasks."""

    def run(
        self, groups: Iterable[TaskGroup], *, is_alone: bool = False, shares_cores: bool = True
    ) -> Iterator[TaskOutcome]:
        """Do all tasks, the first groups first; yield each when it has ended.

        Args:
            groups: tasks that share a process.
            is_alone: whether a group must have its device for itself.
            shares_cores: whether those at work get the cores of a CPU that are left.

        Raises:
            RunError: if nothing is left to do them.
        """


class WorkerProcess(Protocol):
    """A process ``python -m ablate.runner``, which does one group of tasks after another."""

    @property
    def is_running(self) -> bool:
        """Return whether it can be given a group."""

    def begin(self, group: TaskGroup) -> None:
        """Send the tasks of a group, unless the process has died; then `messages` says so."""

    def grant(self, n_cores: int) -> None:
        """Send how many cores the group may keep busy from now on."""

    def messages(self) -> Iterator[Message]:
        """Yield what the process sends; the last is a `ProcessExited`, when there is no process."""

    def terminate(self) -> None:
        """Ask it to save what it has and to stop."""

    def wait(self, timeout: float) -> bool:
        """Wait for its end; return whether that came within so many seconds."""

    def kill(self) -> None:
        """End it at once; `messages` ends too."""

    def close(self) -> None:
        """Give back what belongs to a process that has ended, and of which nothing more is read."""


StartProcess = Callable[[Device, TaskGroup], WorkerProcess]
"""Starts the process of a worker slot, of which ``TaskGroup`` will be the first group."""
