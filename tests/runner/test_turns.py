"""Rows that are measured in turns: their order, how many rounds, and what becomes of failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ablate.runner import probe as module
from ablate.runner.failures import Retry, TaskOutcome
from ablate.runner.probe import (
    MOST_ROUNDS,
    PROBE_SECONDS,
    PROBE_SHARE,
    budget,
    measure_in_turns,
    rounds_of,
    rounds_within,
    seconds_of,
)
from ablate.runner.task import ProgressListener, Task, TaskGroup
from ablate.store import Store
from tests.runner.conftest import Clock, MakeTask, small_spec


@dataclass
class FakePool(ProgressListener):
    """Executes probes in no time, but for the clock, and keeps what it was asked and told."""

    clock: Clock
    seconds: float = 1.0  # of a round
    failures: dict[str, list[str | None]] = field(default_factory=dict)  # of each try, by row
    rounds: list[list[Task]] = field(default_factory=list)
    told: list[tuple[list[str], str, int]] = field(default_factory=list)
    endings: list[tuple[str, str, bool]] = field(default_factory=list)

    def run(self, groups: Iterable[TaskGroup]) -> Iterator[TaskOutcome]:
        groups = list(groups)
        self.rounds.append([task for (task,) in groups])
        self.clock.now += self.seconds
        for (task,) in groups:
            failure: Any = next(iter(self.failures.get(task.variant, ())), None)
            if self.failures.get(task.variant):
                self.failures[task.variant].pop(0)
            yield TaskOutcome(task, failure, failure)

    def expect(self, tasks: Any, what: str, n_at_once: int) -> None:
        self.told.append(([task.variant for task in tasks], what, n_at_once))

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        self.endings.append((task.variant, outcome, is_good))

    def order(self) -> list[str]:
        return ["".join(task.variant for task in tasks) for tasks in self.rounds]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    clock = Clock()
    monkeypatch.setattr("ablate.runner.probe.time.monotonic", clock)
    return FakePool(clock)


def test_rows_take_turns_there_and_back_one_at_a_time(task: MakeTask) -> None:
    rows = [replace(task(name), runs_per_process=3) for name in ("baseline", "a", "b")]
    turns = [row for group in rounds_of(rows, 3) for row in group]
    names = ["baseline", "a", "b"]
    assert [row.variant for row in turns] == [*names, *names[::-1], *names]
    assert [row.round for row in turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert {(row.n_rounds, row.runs_per_process) for row in turns} == {(3, 1)}
    assert len({row.session for row in turns}) == 1


@pytest.fixture
def rows(task: MakeTask) -> list[Task]:
    return [task(name, action="probe") for name in "abc"]


def test_every_second_round_goes_backwards_and_the_budget_says_how_many(
    pool: FakePool, rows: list[Task]
) -> None:
    measure_in_turns(rows, pool, pool, 1, lambda: 4.0)
    assert pool.order() == ["abc", "cba", "abc", "cba", "abc"]  # the first is not of the budget
    assert [[task.round for task in tasks] for tasks in pool.rounds] == [[n] * 3 for n in range(5)]
    assert [tasks[0].n_rounds for tasks in pool.rounds] == [0, 0, 5, 5, 5]
    assert len({task.session for tasks in pool.rounds for task in tasks}) == 1
    words = "measuring the speed and memory of 3 rows, which take turns"
    assert [what for _, what, _ in pool.told] == [words, "", "", "", ""]
    assert {n for *_, n in pool.told} == {1}


def test_the_budget_is_of_all_devices_together(pool: FakePool, rows: list[Task]) -> None:
    measure_in_turns(rows, pool, pool, 2, lambda: 6.0)
    assert len(pool.rounds) == 4  # 3 seconds of each of two devices, after the first
    assert {n for *_, n in pool.told} == {2}


def test_two_rows_take_turns(pool: FakePool, rows: list[Task]) -> None:
    measure_in_turns(rows[:2], pool, pool, 1, lambda: 0.0)
    assert pool.told[0][1].endswith("of 2 rows, which take turns")


def test_the_budget_is_known_after_the_first_round(pool: FakePool, rows: list[Task]) -> None:
    asked: list[int] = []

    def budget() -> float:
        asked.append(len(pool.rounds))
        return 0.0

    measure_in_turns(rows[:1], pool, pool, 1, budget)
    assert asked == [1]
    assert pool.order() == ["a", "a"]
    assert pool.told[0][1] == "measuring the speed and memory of 1 row"
    assert measure_in_turns([], pool, pool, 1, lambda: 9.0) == {}


def test_what_made_a_row_succeed_in_the_first_round_holds_for_the_others(
    pool: FakePool, rows: list[Task]
) -> None:
    """A row that fails is repeated at once; one that fails for good is left out."""
    pool.failures = {"a": ["memory", None], "b": ["memory", "memory"], "c": [None, "other"]}
    rows[1] = replace(rows[1], micro_batch_factor=1, isolation="device")

    def divided(outcome: TaskOutcome) -> Retry | None:
        if outcome.failure != "memory" or outcome.task.micro_batch_factor > 1:
            return None
        task = replace(outcome.task, micro_batch_factor=2)
        return Retry(task, "in halves")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "retry", divided)
        attempts = measure_in_turns(rows, pool, pool, 1, lambda: 2.0)
    assert pool.order() == ["abc", "ab", "ca", "a"]
    factors = [{task.variant: task.micro_batch_factor for task in each} for each in pool.rounds]
    assert factors == [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2}, {"a": 2, "c": 1}, {"a": 2}]
    assert {key: task.micro_batch_factor for key, task in attempts.items()} == {
        "a": 2,
        "b": 2,
        "c": 1,
    }
    assert pool.endings == [
        ("a", "memory; once more, in halves", False),
        ("b", "memory; once more, in halves", False),
        ("c", "done", True),
        ("a", "done", True),
        ("b", "memory", False),
        ("c", "other", False),
        ("a", "done", True),
        ("a", "done", True),
    ]


@pytest.mark.parametrize(
    ("seconds", "of_one", "n"),
    [
        (3.0, 1.0, 4),
        (3.1, 1.0, 5),
        (0.5, 1.0, 2),
        (1.0, 1.0, 2),
        (1e9, 1.0, MOST_ROUNDS),
        (1, 0, 9),
    ],
)
def test_rounds_fill_the_time(seconds: float, of_one: float, n: int) -> None:
    assert rounds_within(seconds, of_one) == n


def test_measuring_takes_a_share_of_the_training_it_is_for(task: MakeTask, store: Store) -> None:
    """By the first round's speed: tokens of all runs over tokens per second."""
    training = {"steps": 50, "accumulate": 2}
    spec = small_spec(training={**small_spec()["training"], **training})
    runs = [task(f"{n}", spec=spec, probe=probe) for n, probe in enumerate("aab")]
    rows = [task(name, key=name, action="probe") for name in "ab"]
    assert budget(rows, runs, store, 3.0) == 6.0  # seconds for a row, asked for
    assert budget(rows, runs, store, None) == 2 * PROBE_SECONDS  # nothing is known
    facts = {"target_tokens_per_batch": 20.0, "batches_per_epoch": 7}
    speeds = {"a": 1000.0, "b": 4000.0}
    for name, speed in speeds.items():
        store.save_probe(name, {**facts, "train_target_tokens_per_second": speed})
    assert seconds_of(runs[2], store.load_probe("b")) == 50 * 2 * 20 / 4000
    assert seconds_of(runs[2], {"train_peak_mib": 1.0}) == float("inf")
    assert budget(rows, runs, store, None) == pytest.approx(PROBE_SHARE * (2 + 2 + 0.5))
    assert budget(rows[:1], runs, store, None) == pytest.approx(PROBE_SHARE * (2 + 2))
