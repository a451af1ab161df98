"""The probe of a row in real workers, over several rounds, and what is saved of them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.pool import GRACE_S, Pool
from ablate.runner.probe import n_rounds_of, probe_one, sessions_of
from ablate.runner.task import Task, one_per_process
from ablate.store import Store
from tests.runner.conftest import SPEEDS, Diary, MakeTask, small_spec

pytestmark = pytest.mark.e2e


@pytest.fixture
def probe(task: MakeTask) -> Task:
    return task("row", key="row", spec=small_spec(), action="probe", session="now")


def _rounds_in_turn(probe: Task, pool: Pool) -> Iterator[bool]:
    """Yield after every round whether the worker is running."""
    for number in range(3):
        (ended,) = pool.run(one_per_process([replace(probe, round=number)]), is_exclusive=True)
        assert ended.reason is None
        (worker,) = pool._idle
        yield worker.process.is_running


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every round is a new process")
def test_the_first_round_has_a_process_of_its_own_and_each_adds_its_speeds(
    store: Store, diary: Diary, probe: Task
) -> None:
    peaks, speeds, endings = [], [], []
    with Local([Device("cpu")]).pool(diary, GRACE_S) as pool:
        for status in _rounds_in_turn(probe, pool):
            known = store.load_probe("row") or {}
            endings.append(status)
            peaks.append(known["train_peak_mib"])
            speeds.append([known["rounds"][name] for name in SPEEDS])
    assert endings == [False, True, True]
    assert len(set(peaks)) == 1, "memory is counted where the process was fresh"
    assert [len(rounds) for of_turn in speeds for rounds in of_turn] == [1, 1, 2, 2, 3, 3]
    assert speeds[2][0][:2] == speeds[1][0]
    assert known["batches_per_epoch"] > 1
    for name in SPEEDS:
        assert known[name] == statistics.median(known["rounds"][name])
        assert min(known["rounds"][name]) > 0


def test_rounds_of_another_session_are_left_alone(store: Store, probe: Task) -> None:
    probe_one(probe, store, lambda *_: None)
    before = store.load_probe("row")
    probe_one(replace(probe, round=1, session="then"), store, lambda *_: None)
    assert store.load_probe("row") == before
    probe_one(replace(probe, session="then"), store, lambda *_: None)
    after = store.load_probe("row") or {}
    assert after["session"] == "then"
    assert n_rounds_of(after) == 1
    assert before is not None
    assert after["earlier"] == {before["session"]: before["rounds"]}
    assert sessions_of(after, 1) == {"then", before["session"]}
    assert sessions_of(after, 2) == set()


@pytest.mark.parametrize("known", [None, {}, {"train_peak_mib": 1.0}])
def test_a_row_without_rounds_has_not_been_measured(known: dict[str, float] | None) -> None:
    assert n_rounds_of(known) == 0
