"""Slurm: what is submitted, and what becomes of jobs when a call ends."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablate.errors import DetachedError, SpecError
from ablate.runner.backends.contract import BackendRequest, ClusterError
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.task import one_per_process
from tests.runner.conftest import Diary, MakeTask

pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")

from ablate.runner.backends import job_follower, slurm, slurm_cluster
from ablate.runner.backends.slurm_cluster import minutes_of, read_options
from ablate.runner.backends.slurm_job import QueueJob
from ablate.runner.backends.task_queue import JobMessage, TaskQueue

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


def test_commands_before_the_work_of_a_job_are_all_kept_in_order() -> None:
    commands = ["module load cuda", "source env/bin/activate"]
    options = read_options({"slurm": "\n".join(f"setup={each}" for each in commands)})
    assert options.parameters["setup"] == commands


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


def test_of_runs_that_share_a_process_those_that_are_at_work_are_not_submitted_again(
    tmp_path: Path, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    del commands
    with _open(tmp_path, monkeypatch, detach="yes") as first, pytest.raises(DetachedError):
        first.detach([[(task("a"),)], [(task("c"),)]])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with _open(tmp_path, monkeypatch, detach="yes") as second:
        assert list(second.reattach([task("a"), task("b")], diary)) == []
        with pytest.raises(DetachedError, match=r"^1 task submitted"):
            second.detach([[(task("a"), task("b"))]])
        (entry,) = second.queue.entries()
    assert [[each.key for each in group] for group in entry.groups] == [["b"]]


def test_a_run_of_two_contexts_is_submitted_once(
    tmp_path: Path, task: MakeTask, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    del commands
    with _open(tmp_path, monkeypatch, detach="yes") as backend:
        for own in "bc":
            with pytest.raises(DetachedError):
                backend.detach([one_per_process([task("a"), task(own)])])
        keys = [[each.key for each in entry.tasks] for entry in backend.queue.entries()]
    assert keys == [["a", "b"], ["c"]]


def test_what_is_left_in_several_steps_is_counted_together(
    tmp_path: Path, task: MakeTask, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    """As the runs of an experiment in several contexts are."""
    with _open(tmp_path, monkeypatch, detach="yes") as backend:
        for name, n in (("a", "1 task"), ("b", "2 tasks")):
            (commands / "script").unlink(missing_ok=True)
            with pytest.raises(DetachedError, match=f"^{n} submitted"):
                backend.detach([one_per_process([task(name)])])
            assert (commands / "script").exists(), "each has a job"
    waiting = backend.queue.folder / "waiting"
    assert sorted(file.name for file in waiting.iterdir()) == ["000000", "000001"]


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


def test_a_task_that_is_lost_with_three_jobs_fails(
    tmp_path: Path, task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is another call of `run`."""

    def submit(job: QueueJob, *_: object) -> list[SimpleNamespace]:
        """Submit a job that takes an entry before its node fails."""
        name = f"{next(numbers)}_0"
        TaskQueue(job.folder).start_messages(name)
        assert TaskQueue(job.folder).take(name) is not None
        return [SimpleNamespace(job_id=name)]

    numbers = itertools.count(1)
    monkeypatch.setattr(slurm_cluster, "submit", submit)
    monkeypatch.setattr(
        slurm_cluster, "ended_jobs", lambda jobs, _: dict.fromkeys(jobs, "NODE_FAIL")
    )
    with _open(tmp_path, monkeypatch) as backend, backend.pool(diary) as pool:
        outcomes = [each for _ in range(3) for each in pool.run(one_per_process([task("a")]))]
    assert [each.failure for each in outcomes] == ["process_lost", "process_lost", "other"]


def test_a_cluster_that_takes_no_jobs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: MakeTask, commands: Path
) -> None:
    (commands / "sbatch").write_text("#!/bin/sh\necho sbatch: error: invalid partition >&2; exit 1")
    with (
        _open(tmp_path, monkeypatch, detach="yes") as backend,
        pytest.raises(ClusterError, match=r"cannot be submitted.*invalid partition"),
    ):
        backend.detach([one_per_process([task("a")])])


@pytest.mark.parametrize(
    ("squeue", "ended"),
    [
        ("printf '7_0 RUNNING\\n7_1 COMPLETED\\n'", {"7_1": "COMPLETED"}),
        ("printf '7_0 COMPLETING\\n'", {"7_1": "unknown to Slurm"}),
        (
            "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1",
            dict.fromkeys(("7_0", "7_1"), "unknown to Slurm"),
        ),
        ("echo slurm_load_jobs error: Unable to contact controller >&2; exit 1", {}),
    ],
)
def test_a_job_has_ended_if_slurm_says_so_but_not_if_slurm_does_not_answer(
    squeue: str, ended: dict[str, str], commands: Path
) -> None:
    """Else the runs of all jobs would be lost, and submitted a second time."""
    (commands / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    assert slurm_cluster.ended_jobs(["7_0", "7_1"], "slurm") == ended
