"""Which runs share a process, and with it a GPU: as many as its speed and its memory allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ablate.runner.interleaving import MOST_ON_CUDA
from ablate.runner.task import Task

TaskGroup = tuple[Task, ...]
"""Tasks that one process does by turns; they use the same plugins."""

_USABLE = 0.8
"""Share of a device's memory that runs are packed into. The rest is for the context of the process,
for what its libraries keep, and for sentences longer than those of the probe."""


@dataclass(frozen=True)
class Needs:
    """What a run needs of a device, as far as its row has been probed.

    Attributes:
        runs_at_once: how many such runs finish sooner side by side than one after another.
        memory_mib: the most memory that it reserves; infinite if that is not known.
    """

    runs_at_once: int = 1
    memory_mib: float = math.inf


def one_per_process(tasks: Sequence[Task]) -> list[TaskGroup]:
    """Return a group of one for each task."""
    return [(replace(task, runs_per_process=1),) for task in tasks]


def pack_tasks(
    tasks: Sequence[Task],
    n_worker_slots: int,
    needs: Callable[[Task], Needs],
    memory_mib: float = math.inf,
) -> list[TaskGroup]:
    """Return the groups of tasks that share a process, in the order of ``tasks``.

    Args:
        tasks: what is to be done.
        n_worker_slots: groups that may be at work at the same time; none gets more than its share.
        needs: of a task.
        memory_mib: of the smallest device; groups fit into `_USABLE` of it.
    """
    n_most = min(-(-len(tasks) // n_worker_slots), MOST_ON_CUDA)
    room = _USABLE * memory_mib
    groups: list[list[Task]] = []
    for task in tasks:
        if groups and _may_share([*groups[-1], task], needs, n_most, room):
            groups[-1].append(task)
        else:
            groups.append([task])
    return [tuple(replace(task, runs_per_process=len(group)) for task in group) for group in groups]


def _may_share(
    group: Sequence[Task], needs: Callable[[Task], Needs], n_most: int, room: float
) -> bool:
    """Return whether all tasks of a group may share a process, with ``room`` MiB for them all."""
    all_needs = [needs(task) for task in group]
    return (
        len(group) <= min(n_most, *(each.runs_at_once for each in all_needs))
        and sum(each.memory_mib for each in all_needs) <= room
        and all(task.isolation == "none" and task.plugins == group[0].plugins for task in group)
    )
