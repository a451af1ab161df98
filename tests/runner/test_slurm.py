"""Slurm: what is submitted, and how messages and ends of jobs become outcomes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from ablate.errors import DetachedError, SpecError
from ablate.runner.backends.contract import BackendRequest, ClusterError
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.failures import retry
from ablate.runner.task import Heartbeat, ProgressListener, Silence, Task, one_per_process
from ablate.runner.watchdog import Watchdog
from ablate.store import Store
from tests.runner.conftest import Diary, MakeTask

pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")

from ablate.runner.backends import job_follower, slurm, slurm_cluster
from ablate.runner.backends.job_follower import JobFollower
from ablate.runner.backends.slurm_cluster import minutes_of, read_options
from ablate.runner.backends.slurm_job import QueueJob
from ablate.runner.backends.task_queue import Entry, JobMessage, TaskQueue

HARDWARE = {"device": "cuda", "device_name": "a GPU", "cpu": "a CPU", "cpu_kind": "its kind"}
FACTS = DeviceFacts(HARDWARE, has_bf16=True, memory_mib=8e4)


@pytest.mark.parametrize(
    ("time_", "minutes"),
    [
        *[("90", 90), ("0:30", 0.5), ("12:00:00", 720), ("1-12", 2160), ("1-0:30", 1470)],
        ("2-01:30:30", 2970.5),
    ],
)
def test_times_are_written_as_slurm_writes_them(time_: str, minutes: float) -> None:
    assert minutes_of(time_) == minutes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        *[
            ({"slurm_time": time_}, "written as Slurm writes it")
            for time_ in ("2h", "0", "1:2:3:4")
        ],
        ({"slurm": "partition=gpu"}, "use --slurm-partition gpu"),
        ({"slurm": "array=1-9"}, "array is set by ablate"),
        ({"slurm": "account"}, "write key=value"),
        ({"slurm": "cluster=pbs"}, "no cluster is called 'pbs'"),
        ({"slurm": "array_parallelism=0"}, "a whole number of at least 1"),
        ({"gpus_per_task": "-1"}, "--gpus-per-task -1: it is a whole number of at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        read_options(options)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder where Slurm's commands leave what they are called with."""
    folder = tmp_path / "commands"
    folder.mkdir()
    scripts = {
        "srun": "",
        "sbatch": f"cp $1 {folder}/script; echo Submitted batch job 7",
        "squeue": "printf '7_0 RUNNING\\n7_1 PENDING\\n'",
        "scancel": f"echo $* >> {folder}/cancelled",
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@contextmanager
def _open(
    results: Path, monkeypatch: pytest.MonkeyPatch, **options: str
) -> Iterator[slurm.SlurmBackend]:
    """Yield a backend that knows the device of its jobs from an earlier call."""
    monkeypatch.setattr(slurm.SlurmBackend, "_cached_facts", lambda _: (FACTS, 1))
    with closing(slurm.open_backend(BackendRequest("cuda", None, results, options))) as backend:
        yield backend


def test_the_script_asks_for_what_the_command_asks_for(
    tmp_path: Path, task: MakeTask, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    more = ["account=lab", "mem=40GB", "array_parallelism=8", "exclusive=true", "licenses=matlab:1"]
    options = {
        "slurm_partition": "gpu",
        "slurm_time": "12:00:00",
        "gpus_per_task": "1",
        "slurm": "\n".join(more),
        "detach": "yes",
    }
    with (
        _open(tmp_path, monkeypatch, **options) as backend,
        pytest.raises(
            DetachedError,
            match=r"2 tasks submitted: 2 jobs \(7\)\n.* --detach and --fresh follows(.|\n)*status",
        ),
    ):
        backend.detach([one_per_process([task(name, fresh=name == "b")]) for name in "ab"])
    script = (commands / "script").read_text().splitlines()
    directives = {line.removeprefix("#SBATCH --") for line in script if line.startswith("#SBATCH")}
    logs = tmp_path / "slurm" / "logs"
    assert directives == {
        *["array=0-1%2", "partition=gpu", "time=720", "gpus-per-task=1", "ntasks-per-node=1"],
        *["account=lab", "mem=40GB", "exclusive", "licenses=matlab:1", "requeue", "nodes=1"],
        *["signal=USR2@90", "job-name=ablate", "open-mode=append", "wckey=submitit"],
        *[f"output={logs}/%A_%a_0_log.out", f"error={logs}/%A_%a_0_log.err"],
    }
    assert any(line.startswith("srun ") and "submitit.core._submit" in line for line in script)
    assert backend.worker_slots == tuple(Device("cuda", 0, f"job {n}") for n in range(8))
    assert not (commands / "cancelled").exists()
    assert sorted(file.name for file in (backend.queue.folder / "waiting").iterdir()) == [
        "000000",
        "000001",
    ]


def test_what_is_at_work_is_not_submitted_again(
    tmp_path: Path, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    rounds = one_per_process([task("a", action="probe", round=n) for n in (0, 1)])
    work = [rounds, one_per_process([task("b")])]
    with _open(tmp_path, monkeypatch, detach="yes") as first, pytest.raises(DetachedError):
        first.detach(work)
    (commands / "script").unlink()
    first.queue.post(JobMessage("ended", "000000", "a", "7_0"))  # of the first round
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with _open(tmp_path, monkeypatch, detach="yes") as second:
        assert len(list(second.reattach([task("a"), task("b")], diary))) == 1
        with pytest.raises(DetachedError, match=r"all tasks are running: 2 jobs \(7\)"):
            second.detach(work)
    assert not (commands / "script").exists()


def test_the_end_of_an_attached_call_cancels_its_jobs(
    tmp_path: Path, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch, commands: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        job_follower, "time", SimpleNamespace(sleep=interrupt, monotonic=lambda: 0.0)
    )
    with (
        pytest.raises(KeyboardInterrupt),
        _open(tmp_path, monkeypatch) as backend,
        backend.pool(diary) as pool,
    ):
        list(pool.run(one_per_process([task("a"), task("b")])))
    assert (commands / "cancelled").read_text().splitlines()[0] == "7_0 7_1"
    assert "2 jobs (7) cancelled; with --detach they would go on" in capsys.readouterr().err
    assert not backend.queue.folder.exists()


def test_a_cluster_that_takes_no_jobs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: MakeTask, commands: Path
) -> None:
    (commands / "sbatch").write_text("#!/bin/sh\necho sbatch: error: invalid partition >&2; exit 1")
    with (
        _open(tmp_path, monkeypatch, detach="yes") as backend,
        pytest.raises(ClusterError, match=r"cannot be submitted.*invalid partition"),
    ):
        backend.detach([one_per_process([task("a")])])


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
