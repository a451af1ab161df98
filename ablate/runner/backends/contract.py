"""The contracts of a backend, of its pool of workers, and of one worker process.

A backend that can exchange messages with its machines starts a `WorkerProcess` for each worker slot
and uses `ablate.runner.pool.Pool`; one that cannot has a pool of its own. In both cases
``python -m ablate.runner`` executes a group of tasks, so that the numbers of a run do not depend on
the backend.
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
from ablate.runner.failures import TaskOutcome
from ablate.runner.task import Message, ProgressListener, Task, TaskGroup


class ClusterError(AblateError):
    """A cluster cannot be reached, or its nodes cannot execute these runs."""


@dataclass(frozen=True)
class BackendRequest:
    """The arguments with which a backend is opened."""

    device: str = "auto"  # as ``--device`` names it
    jobs: int | None = None  # runs at a time: on each GPU, or cores of the CPU; None: all
    results: Path = Path("results")  # the folder of results
    options: Mapping[str, str] = field(default_factory=dict)  # of this backend alone, by name
    # seconds without a heartbeat after which a worker is reported, and killed after as many again;
    # None: as `Watchdog` chooses
    stall_after: float | None = None


class Backend(ABC):
    """Executes tasks, on this machine or on a cluster; its module has an ``open_backend``."""

    # One device for each process that may be at work at the same time. All are of one kind, so that
    # the speeds of rows can be compared; those on other machines have `facts`, determined there.
    worker_slots: Sequence[Device]
    # What a user should know of the choice of devices, a sentence each
    remarks: Sequence[str] = ()

    @abstractmethod
    def pool(self, listener: ProgressListener) -> AbstractContextManager[WorkerPool]:
        """Return a context with the workers; its exit stops them, which save checkpoints."""

    def reattach(self, tasks: Sequence[Task], listener: ProgressListener) -> Iterable[TaskOutcome]:
        """Yield the outcomes of tasks and their probes that earlier calls have left running."""
        return ()

    def detach(self, work: Sequence[Sequence[TaskGroup]]) -> None:
        """Submit jobs that run without this process, if asked to, and raise a `DetachedError`."""
        return

    def close(self) -> None:
        """Release the resources of the backend."""
        return


class WorkerPool(Protocol):
    """Executes groups of tasks on the worker slots of a backend."""

    def run(self, groups: Iterable[TaskGroup]) -> Iterator[TaskOutcome]:
        """Execute all tasks, the first groups first; yield each outcome when its task has ended.

        Those that must be alone on their device come last. Training runs may use the cores of idle
        worker slots. A `RunError` says that no worker slot is left.
        """


class WorkerProcess(Protocol):
    """A process ``python -m ablate.runner``, which executes one group of tasks after another."""

    @property
    def is_running(self) -> bool:
        """Return whether it can execute another group."""

    @property
    def is_waiting(self) -> bool:
        """Return whether it waits for a cluster to start it, which may take any time."""

    def begin(self, group: TaskGroup) -> None:
        """Send the tasks of a group; if the process has died, `messages` reports that."""

    def grant(self, n_cores: int) -> None:
        """Send how many cores the group may keep busy from now on."""

    def messages(self) -> Iterator[Message]:
        """Yield the messages of the process; the last is a `ProcessExited`, once it has ended."""

    def print_stacks(self) -> None:
        """Append its Python stacks to its log."""

    def abort(self) -> None:
        """Kill a process that has stopped working; `messages` reports that, with what is left."""

    def terminate(self) -> None:
        """Ask it to save a checkpoint and to stop."""

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for its end; return whether it has ended."""

    def kill(self) -> None:
        """End it at once; `messages` ends too."""

    def close(self) -> None:
        """Release the resources of a process that has ended, after its last message was read."""


StartProcess = Callable[[Device, TaskGroup], WorkerProcess]
"""Starts a process on a worker slot's device; the group is the first that it will execute."""
