"""Which runs share a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ablate.runner.task import Task

TaskGroup = tuple[Task, ...]
"""Tasks that one process does by turns; they use the same plugins."""


def one_per_process(tasks: Sequence[Task]) -> list[TaskGroup]:
    """Return a crew of one for each task."""
    return [(replace(task, runs_per_process=1),) for task in tasks]


def pack_tasks(
    tasks: Sequence[Task], n_worker_slots: int, n_at_once: Callable[[Task], int]
) -> list[TaskGroup]:
    """Return who does what with whom, in the order of ``tasks``.

    Args:
        tasks: what is to be done.
        n_worker_slots: crews that may be at work at the same time; none gets more than its share.
        n_at_once: of how many such tasks at once a device has more than of one after the other.
    """
    share = -(-len(tasks) // n_worker_slots)
    found: list[list[Task]] = []
    for task in tasks:
        group = found[-1] if found else []
        n_most = min([share, *(n_at_once(member) for member in (*group, task))])
        if group and len(group) < n_most and task.plugins == group[0].plugins:
            group.append(task)
        else:
            found.append([task])
    return [tuple(replace(task, runs_per_process=len(group)) for task in group) for group in found]
