"""Which runs share a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ablate.runner.task import Task

Crew = tuple[Task, ...]
"""Tasks that one process does by turns; they use the same plugins."""


def alone(tasks: Sequence[Task]) -> list[Crew]:
    """Return a crew of one for each task."""
    return [(replace(task, n_together=1),) for task in tasks]


def crews(tasks: Sequence[Task], n_places: int, n_at_once: Callable[[Task], int]) -> list[Crew]:
    """Return who does what with whom, in the order of ``tasks``.

    Args:
        tasks: what is to be done.
        n_places: crews that may be at work at the same time; none gets more than its share.
        n_at_once: of how many such tasks at once a device has more than of one after the other.
    """
    share = -(-len(tasks) // n_places)
    found: list[list[Task]] = []
    for task in tasks:
        crew = found[-1] if found else []
        n_most = min([share, *(n_at_once(member) for member in (*crew, task))])
        if crew and len(crew) < n_most and task.plugins == crew[0].plugins:
            crew.append(task)
        else:
            found.append([task])
    return [tuple(replace(task, n_together=len(crew)) for task in crew) for crew in found]
