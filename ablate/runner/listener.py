"""Listeners to the progress of tasks: in the scheduler, and in a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ablate.runner.devices import Device
from ablate.runner.task import Heartbeat, Silence, Task
from ablate.training import Progress


class ProgressListener:
    """Is called with what happens to tasks while they are scheduled; does nothing by itself."""

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        """Announce tasks.

        Args:
            tasks: all that come next.
            what: of them, in words; empty if it was announced before.
            n_at_once: how many of them are done at the same time.
        """

    def started(self, task: Task, device: Device) -> None:
        """Announce that a worker begins a task."""

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        """Announce what a worker is doing."""

    def stalled(self, task: Task, silence: Silence) -> None:
        """Announce that a worker has sent no heartbeat for long; the next one ends that."""

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        """Announce how a task ended, in words."""

    def note(self, text: str) -> None:
        """Announce what concerns no task."""


class ForwardingListener(ProgressListener):
    """Forwards every call to another listener; a subclass adds to some of them."""

    def __init__(self, listener: ProgressListener) -> None:
        self.listener = listener

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        self.listener.expect(tasks, what, n_at_once)

    def started(self, task: Task, device: Device) -> None:
        self.listener.started(task, device)

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        self.listener.heartbeat(task, heartbeat)

    def stalled(self, task: Task, silence: Silence) -> None:
        self.listener.stalled(task, silence)

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        self.listener.ended(task, outcome, is_good=is_good)

    def note(self, text: str) -> None:
        self.listener.note(text)


class Report(Protocol):
    """Is called in a worker with what a task does."""

    def __call__(
        self, phase: str, progress: Progress | None = None, largest_batch: int | None = None
    ) -> None:
        """Announce a phase, or its progress.

        Args:
            phase: in a word or two.
            progress: while training.
            largest_batch: sentences in the largest batch, where work on batches begins.
        """
