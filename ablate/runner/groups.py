"""Which runs share a process, and with it a GPU: as many as its speed and its memory allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ablate.runner.streams import MOST_ON_CUDA
from ablate.runner.task import Task

TaskGroup = tuple[Task, ...]
"""Tasks that take turns in one process; they use the same plugins."""

_USABLE = 0.8
"""Share of a device's memory that runs are packed into. The rest is for the CUDA context, for the
caches of libraries, and for sentences longer than those of the probe."""

_SHARE_OF_LARGEST = 0.9
"""A device with this share of the largest device's memory counts as one of the largest, too."""


@dataclass(frozen=True)
class Needs:
    """What a run needs of a device, according to its row's probe.

    Attributes:
        runs_at_once: how many such runs are faster side by side than one after another.
        memory_mib: the most memory that it reserves; infinite if unknown.
    """

    runs_at_once: int = 1
    memory_mib: float = math.inf


def one_per_process(tasks: Sequence[Task]) -> list[TaskGroup]:
    """Return a group of one for each task."""
    return [(replace(task, runs_per_process=1),) for task in tasks]


def pack_tasks(
    tasks: Sequence[Task],
    n_worker_slots: int,
    runs_at_once: Callable[[Task], int],
    memories: Collection[float],
) -> list[TaskGroup]:
    """Return the groups of tasks that share a process, in the order of ``tasks``.

    Args:
        tasks: what is to be done.
        n_worker_slots: groups that may be at work at the same time; none gets more than its share.
        runs_at_once: of a task, as in `Needs`.
        memories: of the devices, in MiB; a group fits into `_USABLE` of every device that has
            room for any of its tasks. Tasks that need an unknown amount count as fitting.
    """
    n_most = min(-(-len(tasks) // n_worker_slots), MOST_ON_CUDA)

    def may_share(group: Sequence[Task]) -> bool:
        room = _USABLE * min(least_memory(task.memory_mib, memories) for task in group)
        return (
            len(group) <= min(n_most, *map(runs_at_once, group))
            and sum(task.memory_mib for task in group if task.memory_mib < math.inf) <= room
            and all(task.isolation == "none" and task.plugins == group[0].plugins for task in group)
            and all(task.n_devices == 1 for task in group)
        )

    groups: list[list[Task]] = []
    for task in tasks:
        if groups and may_share([*groups[-1], task]):
            groups[-1].append(task)
        else:
            groups.append([task])
    return [tuple(replace(task, runs_per_process=len(group)) for task in group) for group in groups]


def least_memory(needed_mib: float, memories: Collection[float]) -> float:
    """Return the memory that a device must have for a group that needs ``needed_mib``.

    A group that needs more than any device has, or an unknown amount, gets the largest devices.

    Args:
        needed_mib: reserved at most; infinite if unknown.
        memories: of the devices, in MiB.
    """
    sufficient = (memory for memory in memories if needed_mib <= _USABLE * memory)
    return min(sufficient, default=_SHARE_OF_LARGEST * max(memories))
