"""Detection of workers that have stopped working without having ended.

A worker sends a heartbeat with every step of its work, at most once a second. One that sends none
for long has been stopped, or waits for a file system, a driver or another rank. Three things
happen, one after another, unless a heartbeat comes in between:

    after the limit                    the worker is reported, and prints its Python stack
    after the limit once more          it is killed, and its tasks are repeated once
    when it has not ended by then      it is abandoned: its tasks are repeated without waiting
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ablate.runner.task import STARTING
from ablate.wording import format_duration

FEWEST_S = 120.0  # the least limit by default
# The least limit of a phase without a heartbeat: it may read a corpus, compile or capture
FIRST_S = 1800.0
FACTOR = 4.0  # times the longest silence so far is the limit by default
END_S = 60.0  # how long a killed worker may take to end
_MOST_TICK_S = 5.0

Worker = TypeVar("Worker", bound=Hashable)
Action = Literal["report", "kill", "abandon"]


@dataclass(frozen=True)
class Overdue(Generic[Worker]):
    """What is to be done with a worker that has sent nothing for long."""

    worker: Worker  # as it was given to `Watchdog.watch`
    action: Action  # the next one
    seconds: float  # without a heartbeat so far
    seconds_left: float  # until it is killed
    phases: tuple[str, ...]  # of its tasks


@dataclass
class _Watched:
    heard_at: float  # when its last heartbeat came
    phases: dict[str, str]  # of its tasks, by their keys
    # keys of the tasks with a heartbeat within their present phase
    known: set[str] = field(default_factory=set)
    n_actions: int = 0  # how many have been taken since the last heartbeat
    killed_at: float = 0.0  # when that was done


def silence_text(seconds: float, phases: Sequence[str]) -> str:
    """Return for how long a worker has sent nothing, and in which phases its tasks are."""
    return f"no news for {format_duration(seconds)} ({', '.join(phases) or 'ending'})"


class Watchdog(Generic[Worker]):
    """Measures how long each worker has been silent, and says what is to be done.

    The limit is that of the task of a worker whose phase allows the most, because tasks of one
    process take turns: ``stall_after``, or `FACTOR` times the longest silence so far in this phase,
    of any worker, but at least `FEWEST_S`, or `FIRST_S` in a phase from which the worker has sent
    nothing yet; and ``delay_s`` more, that heartbeats may take to arrive. Times in which this
    process was stopped itself do not count: between two calls of `overdue`, at most five seconds
    do.
    """

    def __init__(
        self,
        stall_after: float | None = None,
        timer: Callable[[], float] = time.monotonic,
        delay_s: float = 0.0,
    ) -> None:
        self._stall_after, self._timer, self._delay_s = stall_after, timer, delay_s
        self.watched: dict[Worker, _Watched] = {}
        self._longest: dict[str, float] = {}  # silence in each phase
        self._now = 0.0  # without the times in which this process was stopped
        self._ticked_at = timer()

    def watch(self, worker: Worker, keys: Iterable[str]) -> None:
        self._tick()
        self.watched[worker] = _Watched(self._now, dict.fromkeys(keys, STARTING))

    def forget(self, worker: Worker) -> None:
        self.watched.pop(worker, None)

    def heard(self, worker: Worker, key: str, phase: str) -> None:
        watched = self.watched.get(worker)
        if watched is None or key not in watched.phases:
            return
        before, silence = watched.phases[key], self._now - watched.heard_at
        self._longest[before] = max(self._longest.get(before, 0.0), silence)
        if phase == before:
            watched.known.add(key)
        else:
            watched.known.discard(key)
        watched.phases[key] = phase
        self.answered(worker)

    def answered(self, worker: Worker) -> None:
        """Note that a worker has sent something that is no heartbeat of its tasks."""
        watched = self.watched.get(worker)
        if watched is not None and watched.n_actions < 2:  # one that was killed is not waited for
            watched.heard_at, watched.n_actions = self._now, 0

    def ended(self, worker: Worker, key: str) -> None:
        if worker in self.watched:
            self.watched[worker].phases.pop(key, None)
            self.answered(worker)

    def overdue(self) -> list[Overdue[Worker]]:
        """Return what is to be done now; each of it is returned once."""
        self._tick()
        pairs = self.watched.items()
        return [due for worker, watched in pairs if (due := self._due(worker, watched))]

    def _due(self, worker: Worker, watched: _Watched) -> Overdue[Worker] | None:
        least = {key: FEWEST_S if key in watched.known else FIRST_S for key in watched.phases}
        limits = [
            max(least[key], FACTOR * self._longest.get(phase, 0.0))
            for key, phase in watched.phases.items()
        ]
        limit = (self._stall_after or max(limits, default=FEWEST_S)) + self._delay_s
        silence = self._now - watched.heard_at
        actions: tuple[Action, ...] = ("report", "kill", "abandon")
        if watched.n_actions == len(actions):
            return None
        if watched.n_actions == 2:
            is_due = self._now - watched.killed_at >= END_S
        else:
            is_due = silence >= limit * (watched.n_actions + 1)
        if not is_due:
            return None
        action = actions[watched.n_actions]
        if action == "kill":
            watched.killed_at = self._now
        watched.n_actions += 1
        phases = tuple(dict.fromkeys(watched.phases.values()))
        return Overdue(worker, action, silence, max(0.0, 2 * limit - silence), phases)

    def _tick(self) -> None:
        present = self._timer()
        self._now += min(present - self._ticked_at, _MOST_TICK_S)
        self._ticked_at = present
