"""The processes of a run on several devices: how they start, and what the loss of one ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import distributed

from ablate.errors import DivergedError
from ablate.runner import other_ranks
from ablate.runner.failures import RankLostError, failure_of_exit
from ablate.runner.other_ranks import Follow, joined_ranks
from ablate.runner.task import Task
from ablate.training.ranks import ALONE, Ranks
from tests.runner.conftest import MakeTask


@pytest.fixture
def three(task: MakeTask) -> Task:
    return task("three", spec={"seed": 1, "devices_per_run": 3})


FORKED = "a new program, "
"""Is empty in the first rank, and so in a fork of it."""


def add(ranks: Ranks) -> float:
    """Return the sum of 10 to the power of each rank, which all ranks compute together."""
    x = torch.tensor(10.0**ranks.rank)
    distributed.all_reduce(x)
    return x.item()


def add_and_write(task: Task, ranks: Ranks) -> None:
    total = add(ranks)
    time.sleep(0.2)  # what ranks do after the last exchange is waited for
    (task.results / f"{ranks.rank} of {ranks.n}").write_text(f"{total} by {FORKED}{os.getpid()}")


def add_twice(task: Task, ranks: Ranks) -> None:
    assert add(ranks) == add(ranks)


def add_and_fail(task: Task, ranks: Ranks) -> None:
    if ranks.rank == 1:
        raise MemoryError("no room")
    add(ranks)


def add_and_die(task: Task, ranks: Ranks) -> None:
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    add(ranks)


def fail_or_wait(task: Task, ranks: Ranks) -> None:
    if ranks.rank == 1:
        raise RuntimeError("a reason of its own")
    time.sleep(60)


def fill_memory_or_wait(task: Task, ranks: Ranks) -> None:
    if ranks.rank == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    time.sleep(60)


def die_or_wait(task: Task, ranks: Ranks) -> None:
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def fail_late(task: Task, ranks: Ranks) -> None:
    if ranks.rank == 1:
        time.sleep(0.3)  # the other one has ended
        raise RuntimeError("a reason of its own")


def add_and_wait(task: Task, ranks: Ranks) -> None:
    add(ranks)
    (task.results / str(os.getpid())).touch()
    time.sleep(60)


def never(task: Task, ranks: Ranks) -> None:
    raise AssertionError("there is no other rank to start")


def test_the_ranks_are_processes_that_compute_together(
    three: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FORKED", "")
    with joined_ranks(three, add_and_write) as ranks:
        assert (ranks.rank, ranks.n) == (0, 3)
        assert add(ranks) == 111
    assert not distributed.is_initialized()
    written = [(three.results / f"{rank} of 3").read_text().split(" by ") for rank in (1, 2)]
    assert [total for total, _ in written] == ["111.0", "111.0"]
    assert len({os.getpid(), *(int(process) for _, process in written)}) == 3


def test_other_ranks_go_on_when_all_processes_are_asked_to_stop(three: Task) -> None:
    with joined_ranks(three, add_twice) as ranks:
        add(ranks)
        for other in multiprocessing.active_children():
            os.kill(other.pid or 0, signal.SIGTERM)
        assert add(ranks) == 111


def test_one_device_starts_nothing(task: MakeTask) -> None:
    with joined_ranks(task("one"), never) as ranks:
        assert ranks == ALONE
        assert not distributed.is_initialized()


def test_the_first_ranks_own_error_is_the_reason(three: Task) -> None:
    error = DivergedError("the loss of step 3 is nan")

    def fail() -> None:
        with joined_ranks(three, add_and_wait) as ranks:
            add(ranks)
            while len(list(three.results.iterdir())) < 2:
                time.sleep(0.01)
            raise error

    with pytest.raises(DivergedError) as raised:
        fail()
    assert raised.value is error
    assert raised.value.__cause__ is None
    for file in three.results.iterdir():  # the others have ended
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.name), 0)


@pytest.mark.parametrize(
    ("follow", "reason", "failure"),
    [
        (add_and_fail, "MemoryError: no room", "memory"),
        (add_and_die, "killed by signal 9", "killed"),
    ],
)
def test_what_ended_another_rank_is_the_reason_for_the_loss_of_it(
    three: Task, follow: Follow, reason: str, failure: str
) -> None:
    def lose() -> None:
        with joined_ranks(three, follow) as ranks:
            add(ranks)

    with pytest.raises(RankLostError, match=f"^rank 1 of 3: {reason}") as lost:
        lose()
    assert lost.value.failure == failure
    assert isinstance(lost.value.__cause__, RuntimeError)


def exit_status_of(work: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    return process.exitcode


@pytest.mark.parametrize(
    ("follow", "failure", "reason"),
    [
        (fail_or_wait, "other", "RuntimeError: a reason of its own"),
        (fail_late, "other", "RuntimeError: a reason of its own"),
        (fill_memory_or_wait, "memory", "OutOfMemoryError: CUDA out of memory. Tried to "),
        (die_or_wait, "killed", "killed by signal 9"),
    ],
)
def test_a_first_rank_that_does_not_notice_a_loss_ends_with_the_reason(
    three: Task,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    follow: Follow,
    failure: str,
    reason: str,
) -> None:
    """As with NCCL, whose ranks wait for a lost one."""
    monkeypatch.setattr(other_ranks, "_GRACE_S", 0.1)
    joined = tmp_path / "joined"

    def wait() -> None:
        sys.stderr = (tmp_path / "log").open("w", buffering=1)
        with joined_ranks(three, follow_when_joined):
            joined.touch()
            time.sleep(60)

    def follow_when_joined(task: Task, ranks: Ranks) -> None:
        """A first rank that is still joining would notice the loss."""
        while not joined.exists():
            time.sleep(0.01)
        follow(task, ranks)

    status = exit_status_of(wait)
    assert status is not None
    assert status > 0
    last = (tmp_path / "log").read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith(f"rank 1 of 3: {reason}")
    assert failure_of_exit(status, last) == failure


def test_a_first_rank_outlives_those_that_it_has_ended(
    three: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_ranks, "_GRACE_S", 0.05)

    def go_on() -> None:
        with suppress(DivergedError), joined_ranks(three, add_and_wait) as ranks:
            add(ranks)
            raise DivergedError("the loss of step 3 is nan")
        time.sleep(1.0)  # longer than the watch over the others waits

    assert exit_status_of(go_on) == 0
