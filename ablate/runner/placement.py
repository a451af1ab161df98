"""Which device executes which groups of runs, and in which order.

The baseline comes first, then the longest groups, so that the last groups are short. If devices
differ in memory, groups that fit on few of them are planned before those that fit on more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablate.config import BASELINE
from ablate.runner.groups import TaskGroup, least_memory


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
    least = [least_memory(sum(task.memory_mib for task in group), memories) for group in waiting]
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
