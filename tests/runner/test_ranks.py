"""Runs on several devices: their worker slots, what is refused, and how each rank ends."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from torch import distributed

from ablate.api.selection import hash_of
from ablate.config import RunSpec, load
from ablate.errors import SpecError, StoppedError
from ablate.runner import other_ranks
from ablate.runner.backends.local import Local
from ablate.runner.check import check, check_devices
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.failures import RankLostError
from ablate.runner.other_ranks import joined_ranks
from ablate.runner.pool import Pool
from ablate.runner.run import run_one
from ablate.runner.schedule import Limits, pack_tasks, schedule
from ablate.runner.task import Heartbeat, Message, ProcessExited, Task, TaskFinished, TaskGroup
from ablate.store import Store
from ablate.training import Progress, loop
from ablate.training import ranks as training_ranks
from ablate.training.ranks import Ranks
from tests.runner.conftest import (
    MEASURED,
    SMALL,
    Diary,
    FakeProcess,
    MakeTask,
    assert_same,
    finish,
    small_spec,
)

Make = Callable[[str], Task]
FEW = {"steps": 40, "evaluate_every": 10, "batch_tokens": 200}


BOTH = pytest.mark.parametrize("make", ["distributed", "fully_sharded"], indirect=True)


@pytest.fixture
def make(task: MakeTask, request: pytest.FixtureRequest) -> Make:
    """Make a run on two devices; the parameter is its engine."""
    engine = getattr(request, "param", "distributed")
    spec = small_spec(devices_per_run=2, training={**SMALL["training"], **FEW})
    return lambda key: task(key, spec=spec, engine=engine, probe="measured")


class BusyProcess(FakeProcess):
    """A worker process that does nothing for a moment."""

    seen: dict[str, list[str]]  # the GPUs that each run saw, by its variant
    at_work: list[str]  # the GPUs of the runs that are at work now
    most: int  # how many there have been at a time

    def __init__(self, device: Device, group: TaskGroup) -> None:
        self._gpus = device.environment()["CUDA_VISIBLE_DEVICES"].split(",")
        self._groups: SimpleQueue[TaskGroup] = SimpleQueue()

    def begin(self, group: TaskGroup) -> None:
        cls = type(self)
        cls.seen[group[0].variant] = self._gpus
        assert not set(cls.at_work) & set(self._gpus)
        cls.at_work += self._gpus
        cls.most = max(cls.most, len(cls.at_work))
        self._groups.put(group)

    def messages(self) -> Iterator[Message]:
        while group := self._groups.get():
            time.sleep(0.02)
            for gpu in self._gpus:
                self.at_work.remove(gpu)
            yield from (TaskFinished(task.key) for task in group)
            yield ProcessExited(0)

    def kill(self) -> None:
        self.is_running = False
        self._groups.put(())


def test_a_run_takes_as_many_gpus_as_it_has_devices(
    task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    BusyProcess.seen, BusyProcess.at_work, BusyProcess.most = {}, [], 0
    sizes = {"one": 1, "four": 4, "two": 2, "other": 1, "three": 3, "last": 1}
    tasks = [task(name, spec={"seed": 1, "devices_per_run": n}) for name, n in sizes.items()]
    facts = DeviceFacts({}, has_bf16=False, memory_mib=80_000.0)
    gpus = [Device("cuda", index, facts=facts) for index in range(5)]
    with Pool(gpus, diary, BusyProcess) as pool:
        outcomes = list(pool.run([(each,) for each in tasks]))
    assert {name: len(gpus) for name, gpus in BusyProcess.seen.items()} == sizes
    assert BusyProcess.most == 5
    assert diary.begun[:1] == ["four"]
    assert [name for name in diary.begun if sizes[name] > 1] == ["four", "two", "three"]
    assert {ended.failure for ended in outcomes} == {None}


def test_a_process_that_sees_other_gpus_than_those_of_a_run_is_not_used_for_it(
    task: MakeTask, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two rounds of probes all GPUs are free, and are shared out in another order."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    BusyProcess.seen, BusyProcess.at_work, BusyProcess.most = {}, [], 0
    tasks = [task(name, spec={"seed": 1, "devices_per_run": 2}) for name in "ab"]
    facts = DeviceFacts({}, has_bf16=False, memory_mib=80_000.0)
    gpus = [Device("cuda", index, facts=facts) for index in range(4)]
    with Pool(gpus, diary, BusyProcess) as pool:
        for _ in range(3):
            assert len(list(pool.run([(each,) for each in tasks]))) == 2
            assert sorted(gpu for seen in BusyProcess.seen.values() for gpu in seen) == list("0123")


def test_the_devices_of_a_run_are_of_one_machine(task: MakeTask, diary: Diary) -> None:
    BusyProcess.seen, BusyProcess.at_work, BusyProcess.most = {}, [], 0
    slots = [Device("cpu", node=node) for node in "abbc"]
    groups: list[TaskGroup] = [(task(f"{n}", spec={"devices_per_run": n}),) for n in (2, 3)]
    with Pool(slots, diary, BusyProcess) as pool:
        begun = pool._next(groups, is_exclusive=False)
        assert begun is not None
        assert [worker.device.node for worker in begun[1]] == ["b", "b"]
        assert pool._next(groups, is_exclusive=False) is None


def test_a_run_on_several_devices_shares_no_process(task: MakeTask) -> None:
    tasks = [task(f"run {i}", spec={"devices_per_run": n}) for i, n in enumerate([1, 1, 2, 1])]
    groups = pack_tasks(tasks, 1, lambda _: 8, [math.inf])
    assert [len(group) for group in groups] == [2, 1, 1]


@pytest.mark.parametrize("engine", ["eager", "data_parallel", "compile"])
def test_the_number_of_devices_names_another_run_unless_it_is_one(engine: str) -> None:
    hashes = [
        hash_of(RunSpec.model_validate(SMALL | changes), "corpus", "fp32", engine)
        for changes in ({}, {"devices_per_run": 1}, {"devices_per_run": 2}, {"devices_per_run": 3})
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    assert hashes[2] == hash_of(
        RunSpec.model_validate({**SMALL, "devices_per_run": 2}), "corpus", "fp32", "cuda_graph"
    )


def _experiment(folder: Path, feed_forward: str, rows: str = "") -> Path:
    file = folder / "large.yaml"
    file.write_text(
        "tokenizer: word\ndevices_per_run: 2\n"
        "model:\n  dims: {d_model: 16, n_heads: 2, max_len: 32}\n"
        f"  n_layers: 1\n  feed_forward: {{name: {feed_forward}, d_ff: 16}}\n{rows}",
        encoding="utf-8",
    )
    return file


def test_parts_that_look_at_the_whole_batch_are_refused_where_the_file_says_it(
    tmp_path: Path,
) -> None:
    check(load(_experiment(tmp_path, "relu")))
    with pytest.raises(
        SpecError, match=r"large\.yaml:2:18: .*over devices: feed_forward: .* of the whole batch"
    ):
        check(load(_experiment(tmp_path, "mixture_of_experts")))


def test_there_must_be_as_many_devices_as_a_run_asks_for(tmp_path: Path) -> None:
    experiment = load(_experiment(tmp_path, "relu"))
    check_devices(experiment, [Device("cpu")] * 2)
    with pytest.raises(
        SpecError, match=r"large\.yaml:2:18: .* 2 devices \(cpu\), and 1 .*--jobs 2"
    ):
        check_devices(experiment, [Device("cpu", node="a"), Device("cpu", node="b")])


def _sleep(task: Task, ranks: Ranks) -> None:
    """Be a rank that does not answer."""
    ranks.from_first(lambda: 0.0)
    time.sleep(60)


with_processes = [
    pytest.mark.ddp,
    pytest.mark.skipif(sys.platform != "linux", reason="looks in /proc"),
]


def _other_ranks(process: int) -> list[int]:
    """Return the children of a process that have children of none."""
    file = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in file.read_text(encoding="ascii").split()]


class TestWithProcesses:
    """Real ranks."""

    pytestmark = with_processes

    @BOTH
    def test_a_lost_rank_ends_the_run_and_the_next_call_continues_it(
        self, make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)

        def kill(
            phase: str, progress: Progress | None = None, largest_batch: int | None = None
        ) -> None:
            if progress is not None and progress.step >= 10:
                (other,) = _other_ranks(os.getpid())
                os.kill(other, signal.SIGKILL)

        finish(make("whole"), store)
        with pytest.raises(RankLostError, match="rank 1 of 2: killed by signal 9") as lost:
            run_one(make("cut"), store, kill, lambda: False)
        assert lost.value.failure == "killed"
        assert _other_ranks(os.getpid()) == []
        assert (store.path("cut") / "checkpoint.pt").exists()
        assert (store.load("cut") or {})["status"] == "oom"
        finish(make("cut"), store)
        assert_same(store, "cut", "whole")

    @BOTH
    def test_a_stopped_run_goes_on_with_the_same_numbers(self, make: Make, store: Store) -> None:
        calls: list[None] = []

        def should_stop() -> bool:
            calls.append(None)
            return len(calls) == 20

        finish(make("whole"), store)
        with pytest.raises(StoppedError):
            run_one(make("cut"), store, lambda *_: None, should_stop)
        finish(make("cut"), store)
        assert_same(store, "cut", "whole")

    def test_a_rank_that_does_not_answer_is_not_waited_for_without_end(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(training_ranks, "TIMEOUT", timedelta(seconds=2))
        monkeypatch.setattr(other_ranks, "_GRACE_S", 0.1)

        def wait() -> None:
            with joined_ranks(make("stuck"), _sleep) as ranks:
                ranks.from_first(lambda: 0.0)
                distributed.all_reduce(torch.zeros(1))

        with pytest.raises(RankLostError, match="the ranks have lost each other"):
            wait()
        assert _other_ranks(os.getpid()) == []

    def test_a_killed_rank_disturbs_no_packed_group_and_is_repeated(
        self, task: MakeTask, make: Make, diary: Diary, store: Store
    ) -> None:
        store.save_probe("measured", MEASURED)
        slots = [Device("cpu")] * 3
        limits = Limits(runs_per_process=2, probes=False)
        small = small_spec()
        killed: list[int] = []

        def on_sign(heartbeat: Heartbeat) -> None:
            if heartbeat.key == "run" and heartbeat.progress is not None and not killed:
                for worker in _other_ranks(os.getpid()):
                    for first in _other_ranks(worker):
                        killed.extend(_other_ranks(first))
                os.kill(killed[0], signal.SIGKILL)

        packed = [task(name, spec=small, probe="measured") for name in "abc"]
        diary.on_sign = on_sign
        schedule([make("run"), *packed], Local(slots), store, diary, limits)
        assert len(killed) == 1
        assert diary.runs_per_process == [1, 2, 2, 1, 1]  # the run is repeated
        for undisturbed in (make("whole"), task("alone", spec=small)):
            finish(undisturbed, store)
        assert_same(store, "run", "whole")
        for key in "abc":
            assert_same(store, key, "alone")

    def test_a_launcher_of_the_call_changes_no_run(
        self, make: Make, diary: Diary, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        finish(make("whole"), store)
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        schedule([make("launched")], Local([Device("cpu")] * 2), store, diary, Limits(probes=False))
        assert_same(store, "launched", "whole")
