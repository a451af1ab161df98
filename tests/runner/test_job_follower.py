"""Jobs: what they do of a queue, and how their messages and ends become outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from ablate.console import Console
from ablate.runner.backends.contract import BackendRequest, ClusterError
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.display import Display
from ablate.runner.failures import retry
from ablate.runner.task import Heartbeat, ProgressListener, Silence, Task, one_per_process
from ablate.runner.watchdog import Watchdog
from ablate.store import Store
from tests.runner.conftest import Diary, MakeTask

pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")

from ablate.runner.backends import job_follower, slurm_cluster
from ablate.runner.backends.job_follower import JobFollower
from ablate.runner.backends.slurm_job import QueueJob
from ablate.runner.backends.task_queue import Entry, JobMessage, TaskQueue


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskQueue:
    """Return a queue with the jobs 7_0 and 7_1."""
    queue = TaskQueue(tmp_path / "slurm" / "queue")
    queue.create()
    queue.save_jobs(["7_0", "7_1"], "slurm")
    (tmp_path / "probes").mkdir()
    return queue


def _taken(queue: TaskQueue, *tasks: Task) -> Entry:
    """Return a new entry that a job has taken."""
    queue.add(one_per_process(tasks))
    entry = queue.take("7_0")
    assert entry is not None
    return entry


def _ended(monkeypatch: pytest.MonkeyPatch, **states: str) -> None:
    monkeypatch.setattr(slurm_cluster, "ended_jobs", lambda jobs, _: states)


def _follow(queue: TaskQueue, diary: Diary, submit: Callable[[int], None] | None = None) -> Any:
    return JobFollower(queue, diary, queue.folder.parent, submit).follow(queue.entries())


def test_a_job_does_what_waits_and_its_outcomes_reach_the_driver(
    queue: TaskQueue, task: MakeTask, diary: Diary, command: list[str], store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("done", "oom", "crashes"):
        queue.add(one_per_process([task(name)]))
    job = QueueJob(queue.folder, BackendRequest("cpu", 1), idle_s=0.0, command=command)
    job._execute_entries([Device("cpu")], queue, "7_0")
    _ended(monkeypatch)
    outcomes = {each.task.variant: each for each in _follow(queue, diary)}
    assert outcomes["done"].failure is None
    assert (outcomes["oom"].failure, outcomes["oom"].largest_batch) == ("memory", 3)
    assert outcomes["crashes"].reason == "the worker ended with exit status 1: the last words"
    assert (store.load("done") or {})["status"] == "done"
    assert set(diary.begun) == {"done", "oom", "crashes"}
    assert "training" in diary.signs
    assert all(entry.is_over for entry in queue.entries())


def test_probes_of_an_entry_take_their_turns_on_one_device(
    queue: TaskQueue, task: MakeTask, command: list[str]
) -> None:
    probes = [task(name, action="probe", round=n) for n in (0, 1) for name in ("a", "b")]
    queue.add(one_per_process(probes))
    job = QueueJob(queue.folder, BackendRequest("cpu", 1), idle_s=0.0, command=command)
    job._execute_entries([Device("cpu")] * 2, queue, "7_0")
    journal = (queue.folder.parents[1] / "journal").read_text().splitlines()
    assert journal == ["probe a 1", "probe b 1"] * 2


def test_the_groups_of_an_entry_follow_one_another_in_a_job_with_several_slots(
    queue: TaskQueue, task: MakeTask, diary: Diary, command: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A run that takes the weights of another one would else train beside it."""
    queue.add(one_per_process([task("done a"), task("done b")]))
    job = QueueJob(queue.folder, BackendRequest("cpu", 2), idle_s=0.0, command=command)
    job._execute_entries([Device("cpu")] * 2, queue, "7_0")
    _ended(monkeypatch)
    outcomes = list(_follow(queue, diary))
    assert [(each.task.variant, each.shared_device) for each in outcomes] == [
        ("done a", False),
        ("done b", False),
    ]


def test_what_must_be_alone_on_its_device_is_alone_in_a_job_too(
    queue: TaskQueue, task: MakeTask, diary: Diary, command: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    isolation = {"done a": "device", "done b": "none", "done c": "device"}
    for name, each in isolation.items():
        queue.add(one_per_process([task(name, isolation=each)]))
    job = QueueJob(queue.folder, BackendRequest("cpu", 3), idle_s=0.0, command=command)
    job._execute_entries([Device("cpu")] * 3, queue, "7_0")
    _ended(monkeypatch)
    outcomes = list(_follow(queue, diary))
    assert {each.task.variant: each.shared_device for each in outcomes} == dict.fromkeys(
        isolation, False
    )


@pytest.mark.parametrize(
    ("state", "failures"),
    [("NODE_FAIL", ["process_lost"]), ("OUT_OF_MEMORY", ["killed"]), ("CANCELLED", ["other"])],
)
def test_what_a_job_takes_with_it_is_told_with_its_state(
    state: str, failures: list[str], queue: TaskQueue, task: MakeTask, diary: Diary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    entry = _taken(queue, task("a"))
    queue.post(JobMessage("started", entry.name, "a", "7_0", Device("cpu")))
    for phase, largest in {"reading": None, "training": 9, "translating test": None}.items():
        heartbeat = Heartbeat("a", phase, largest_batch=largest)
        queue.post(JobMessage("heartbeat", entry.name, "a", "7_0", heartbeat=heartbeat))
    _ended(monkeypatch, **{"7_0": state})
    outcomes = list(_follow(queue, diary, lambda _: None))
    assert [each.failure for each in outcomes] == failures
    assert [(each.reason, each.largest_batch) for each in outcomes] == [(f"job 7_0: {state}", 9)]


def test_the_rounds_of_a_probe_are_lost_once(
    queue: TaskQueue, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A display has one line for all of them."""
    entry = _taken(queue, *(task(x, action="probe", round=n) for n in (0, 1) for x in "ab"))
    queue.post(JobMessage("started", entry.name, "a", "7_0", Device("cpu")))
    _ended(monkeypatch, **{"7_0": "NODE_FAIL"})
    screen = Display(Console(quiet=True))
    outcomes = JobFollower(queue, screen, queue.folder.parent).follow(queue.entries())
    for each in outcomes:
        screen.ended(each.task, each.reason or "", is_good=False)
    assert [failed.key for failed, _ in screen.failures] == ["a", "b"]


def test_a_silent_job_is_killed_and_its_task_counts_as_stalled(
    queue: TaskQueue, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = _taken(queue, task("a"))
    task("a").log.parent.mkdir(parents=True)
    queue.post(JobMessage("started", entry.name, "a", "7_0", Device("cpu")))
    queue.post(
        JobMessage("heartbeat", entry.name, "a", "7_0", heartbeat=Heartbeat("a", "training"))
    )
    queue.post(JobMessage("stalled", entry.name, "a", "7_0", silence=Silence(9.0, 9.0)))
    states: dict[str, str] = {}
    silences: list[Silence] = []
    ticks = itertools.count(0.0, 5.0)
    monkeypatch.setattr(job_follower, "Watchdog", partial(Watchdog, timer=lambda: next(ticks)))
    monkeypatch.setattr(job_follower, "_CHECK_S", {"slurm": 0.0})
    monkeypatch.setattr(job_follower, "_POLL_S", 0.0)
    monkeypatch.setattr(slurm_cluster, "ended_jobs", lambda *_: states)
    monkeypatch.setattr(
        slurm_cluster, "kill", lambda jobs, _: states.update({jobs[0]: "CANCELLED"})
    )
    monkeypatch.setattr(diary, "stalled", lambda _, silence: silences.append(silence))
    follower = JobFollower(queue, diary, queue.folder.parent, lambda _: None, stall_after=60.0)
    (outcome,) = follower.follow(queue.entries())
    reason = "job 7_0: no news for 4:00 (training); it was killed"
    assert (outcome.failure, outcome.reason) == ("stalled", reason)
    assert silences == [Silence(9.0, 9.0), Silence(120.0, 120.0)]  # of its worker, then its own
    assert reason in task("a").log.read_text(encoding="utf-8")
    assert retry(outcome) is not None


def test_a_silence_that_is_over_is_followed_by_the_news_that_ended_it(
    queue: TaskQueue, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later call reads all at once, and must not report that the task is silent now."""
    entry = _taken(queue, task("a"))
    training, silence = Heartbeat("a", "training"), Silence(130.0, 120.0)
    queue.post(JobMessage("started", entry.name, "a", "7_0", Device("cpu")))
    queue.post(JobMessage("stalled", entry.name, "a", "7_0", silence=silence))
    queue.post(JobMessage("heartbeat", entry.name, "a", "7_0", heartbeat=training))
    _ended(monkeypatch)
    listener = Mock(spec=ProgressListener)
    follower = JobFollower(queue, listener, queue.folder.parent)
    assert list(follower.follow(queue.entries(), is_blocking=False)) == []
    assert listener.method_calls[1:] == [
        call.stalled(task("a"), silence),
        call.heartbeat(task("a"), training),
    ]


def test_what_a_job_has_begun_is_not_begun_afresh_after_the_next_one(
    queue: TaskQueue, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add(one_per_process([task("a", fresh=True)]))
    followed = _follow(queue, diary)
    entry = queue.take("7_0")
    assert entry is not None
    heartbeat = Heartbeat("a", "training", largest_batch=9)
    queue.post(JobMessage("heartbeat", entry.name, "a", "7_0", heartbeat=heartbeat))
    queue.requeue("7_0")
    assert queue.take("7_1") is not None
    lost = {"failure": "process_lost", "reason": "", "largest_batch": None}  # before it trained
    queue.post(JobMessage("ended", entry.name, "a", "7_1", outcome=lost))
    _ended(monkeypatch)
    again = retry(next(followed))
    assert again is not None
    assert not again.task.fresh


@pytest.mark.parametrize("is_removed", [False, True])
def test_what_is_lost_under_two_calls_is_told_to_both(
    is_removed: bool, queue: TaskQueue, task: MakeTask, diary: Diary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    entry = _taken(queue, task("a"), task("b"))
    monkeypatch.setattr(job_follower, "_CHECK_S", {"slurm": 0.0, "": 0.0})
    polls = iter(range(4))  # after which it counts as waiting for ever
    clock = SimpleNamespace(sleep=lambda _: next(polls), monotonic=lambda: 0.0)
    monkeypatch.setattr(job_follower, "time", clock)
    _ended(monkeypatch)
    second = _follow(queue, diary)
    queue.post(JobMessage("ended", entry.name, "b", "7_0", outcome={}))
    assert next(second).task == task("b")
    _ended(monkeypatch, **{"7_0": "NODE_FAIL"})
    first = list(_follow(TaskQueue(queue.folder), diary))
    assert [each.reason for each in first] == [None, "job 7_0: NODE_FAIL"]
    if is_removed:
        queue.remove()
    (outcome,) = second
    assert (outcome.task, outcome.failure) == (task("a"), "process_lost")
    assert outcome.reason == "another call has given it up"


def test_what_jobs_leave_waiting_is_given_to_others(
    queue: TaskQueue, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = queue.add(one_per_process([task("a")]))
    for job in ("7_0", "7_1"):
        queue.start_messages(job)
    submitted: list[int] = []

    def submit(n: int) -> None:
        submitted.append(n)
        queue.post(JobMessage("ended", name, "a", "7_2", outcome={}))
        entry = queue.take("7_2")
        assert entry is not None
        queue.mark_ended(entry)

    _ended(monkeypatch, **{"7_0": "COMPLETED", "7_1": "COMPLETED"})
    (outcome,) = _follow(queue, diary, submit)
    assert (submitted, outcome.failure) == ([1], None)


def test_what_waits_for_jobs_of_an_earlier_call_that_are_gone_is_left_to_this_one(
    queue: TaskQueue, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add(one_per_process([task("a")]))
    _ended(monkeypatch, **{"7_0": "CANCELLED", "7_1": "CANCELLED"})
    assert list(_follow(queue, diary)) == []


def test_jobs_that_end_before_they_begin_are_not_submitted_again(
    queue: TaskQueue, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add(one_per_process([task("a")]))
    (queue.folder.parent / "7_1_0_log.err").write_text("...\nNo module named ablate\n")
    _ended(monkeypatch, **{"7_0": "FAILED", "7_1": "FAILED"})
    with pytest.raises(ClusterError, match=r"7_1 ended before.*FAILED.*No module named ablate"):
        list(_follow(queue, diary, lambda _: None))


def test_a_job_on_another_kind_of_node_takes_nothing(queue: TaskQueue) -> None:
    queue.save_facts(DeviceFacts({"device_name": "A", "cpu_kind": "B"}, True, 1.0), 1)
    with pytest.raises(Exception, match=r"runs are made on A \(B\).*--slurm constraint"):
        QueueJob(queue.folder, BackendRequest("cpu", 1), idle_s=0.0)._slots(queue)
