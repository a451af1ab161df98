"""Which runs share a process, which device executes them, and in which order.

As many runs share a process, and with it a GPU, as its speed and its memory allow. The baseline
comes first, then the longest groups, so that the last groups are short. If devices differ in
memory, groups that fit on few of them are planned before those that fit on more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ablate.config import BASELINE
from ablate.runner.streams import MOST_ON_CUDA
from ablate.runner.task import Task, TaskGroup

_USABLE = 0.8
"""Share of a device's memory that runs are packed into. The rest is for the CUDA context, for the
caches of libraries, and for sentences longer than those of the probe."""

_SHARE_OF_LARGEST = 0.9
"""A device with this share of the largest device's memory counts as one of the largest, too."""


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

    A group fits into `_USABLE` of every device that has room for any of its tasks. Tasks that need
    an unknown amount of memory count as fitting.

    Args:
        tasks: what is to be done.
        n_worker_slots: groups that may be at work at the same time; none gets more than its share.
        runs_at_once: how many runs like a task are faster side by side than one after another.
        memories: of the devices, in MiB.
    """
    n_most = min(-(-len(tasks) // n_worker_slots), MOST_ON_CUDA)

    def may_share(group: Sequence[Task]) -> bool:
        room = _USABLE * min(_least_memory(task.memory_mib, memories) for task in group)
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


def priority(group: TaskGroup) -> tuple[bool, float]:
    """Return what groups are sorted by: the baseline's runs first, then the longest first."""
    is_first = any(task.variant == BASELINE and task.action == "train" for task in group)
    return not is_first, -sum(task.seconds for task in group)


def plan(
    waiting: Sequence[TaskGroup], memories: Sequence[float], seconds_left: Sequence[float]
) -> list[list[int]]:
    """Return which of the ``waiting`` groups each device executes, in the order of `priority`.

    Of the groups that fit on the same devices, the longest goes to the device that is free first
    (list scheduling by longest processing time: Graham 1969, SIAM J. Appl. Math. 17(2)). A group of
    unknown duration counts as the longest. Of devices that are free at the same time, the first in
    the order of ``memories`` is taken.

    Args:
        waiting: groups that have not begun.
        memories: of each device, in MiB.
        seconds_left: until each device is free.
    """
    seconds = [-priority(group)[1] for group in waiting]
    longest = max((s for s in (*seconds, *seconds_left) if 0.0 < s < math.inf), default=1.0)
    seconds = [min(each, longest) for each in seconds]
    busy_for = [min(each, longest) for each in seconds_left]
    least = [_least_memory(sum(task.memory_mib for task in group), memories) for group in waiting]
    shares: list[list[int]] = [[] for _ in memories]

    def urgency(number: int) -> tuple[bool, float, float]:
        return priority(waiting[number])[0], -least[number], -seconds[number]

    for number in sorted(range(len(waiting)), key=urgency):
        device = min(
            (device for device, memory in enumerate(memories) if memory >= least[number]),
            key=lambda device: busy_for[device],
        )
        busy_for[device] += seconds[number]
        shares[device].append(number)
    return [sorted(share, key=lambda number: priority(waiting[number])) for share in shares]


def _least_memory(needed_mib: float, memories: Collection[float]) -> float:
    """Return the memory that a device must have for a group that needs ``needed_mib``.

    A group that needs more than any device has, or an unknown amount, gets the largest devices.
    """
    sufficient = (memory for memory in memories if needed_mib <= _USABLE * memory)
    return min(sufficient, default=_SHARE_OF_LARGEST * max(memories))
