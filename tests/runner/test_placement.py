"""Which runs share a process, on which device they go, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from ablate.registry import Plugin
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device, memory_mib
from ablate.runner.pool import next_group
from ablate.runner.schedule import Limits, pack_tasks, schedule
from ablate.runner.streams import MOST_ON_CUDA
from ablate.runner.task import Task, TaskGroup
from tests.runner.conftest import MEASURED, FakeWorkers, MakeTask

GIB = 1024.0


def _waiting(make: MakeTask, *groups: tuple[str, float, float]) -> list[TaskGroup]:
    """Return groups of one task, of a name, an amount of memory in GiB, and seconds."""
    return [(make(name, memory_mib=gib * GIB, seconds=s),) for name, gib, s in groups]


LARGE, SMALL_GPU = 80 * GIB, 16 * GIB


def test_large_devices_keep_to_large_runs(task: MakeTask) -> None:
    waiting = _waiting(task, ("small", 1, 90.0), ("large", 60, 50.0), ("larger", 60, 60.0))
    assert next_group(waiting, LARGE, [LARGE, SMALL_GPU]) == 2
    assert next_group(waiting, SMALL_GPU, [LARGE, SMALL_GPU]) == 0
    assert next_group(waiting, LARGE, [LARGE, LARGE]) == 0


def test_the_baseline_goes_before_longer_runs_and_larger_ones(task: MakeTask) -> None:
    waiting = _waiting(task, ("long", 60, 90.0), ("baseline", 1, 5.0), ("baseline", 1, 6.0))
    assert next_group(waiting, LARGE, [LARGE, SMALL_GPU]) == 2
    assert next_group(waiting, SMALL_GPU, [LARGE, SMALL_GPU]) == 2
    probes = [(replace(group[0], action="probe"),) for group in waiting]
    assert next_group(probes, LARGE, [LARGE]) == 0


def test_runs_of_unknown_or_excessive_memory_go_to_the_largest_devices(task: MakeTask) -> None:
    unknown = [(task(f"unknown {number}"),) for number in range(3)]
    for waiting in (unknown, _waiting(task, *[("too large", 100, 1.0)] * 3)):
        memories = [SMALL_GPU, 79 * GIB, LARGE]
        assert [next_group(waiting, memory, memories) for memory in memories] == [None, 0, 0]
        assert next_group(waiting, SMALL_GPU, [SMALL_GPU]) == 0  # the others are lost


def test_runs_of_unknown_length_count_as_the_longest(task: MakeTask) -> None:
    waiting = _waiting(task, ("short", 1, 1.0), ("long", 1, 9.0), ("unknown", 1, math.inf))
    assert next_group(waiting, LARGE, [LARGE]) == 2


class Needs(NamedTuple):
    """What a run needs of a device."""

    runs_at_once: int = 1
    memory_mib: float = math.inf


NARROW, WIDE = Needs(3, 500.0), Needs(1, 2000.0)
ROWS = {"narrow": NARROW, "wide": WIDE, "small": Needs(100, 10.0)}
PROBE = {"train_peak_mib": 700.0, "decode_peak_mib": 1000.0, "runs_at_once": 4.0}
ROWS |= {"unknown": Needs(), "requested": Needs(8)}  # neither was probed


def _at_once(task: Task) -> int:
    return ROWS[task.variant.split()[0]].runs_at_once


def _packed(
    names: Sequence[str],
    make: MakeTask,
    n_worker_slots: int = 1,
    memories: Sequence[float] = (math.inf,),
) -> list[int]:
    """Return the sizes of the groups."""
    tasks = [
        make(f"{name} {number}", memory_mib=ROWS[name].memory_mib)
        for number, name in enumerate(names)
    ]
    groups = pack_tasks(tasks, n_worker_slots, _at_once, memories)
    assert [each.key for group in groups for each in group] == [each.key for each in tasks]
    assert all(each.runs_per_process == len(group) for group in groups for each in group)
    return [len(group) for group in groups]


@pytest.mark.parametrize(
    ("names", "n_worker_slots", "expected"),
    [
        (["narrow"] * 4 + ["wide", "narrow"], 1, [3, 1, 1, 1]),
        (["narrow"] * 4 + ["wide", "narrow"], 3, [2, 2, 1, 1]),  # no slot has more than its share
        (["small"] * 35, 1, [16, 16, 3]),
        (["small", "narrow", "small", "small"], 1, [3, 1]),
    ],
)
def test_the_speed_of_a_row_limits_how_many_runs_share_a_process(
    names: list[str], n_worker_slots: int, expected: list[int], task: MakeTask
) -> None:
    assert MOST_ON_CUDA == 16
    assert _packed(names, task, n_worker_slots) == expected


@pytest.mark.parametrize(
    ("memory_mib", "expected"),
    [
        (10_000.0, [3, 3, 1]),
        (1900.0, [3, 3, 1]),  # 0.8 x 1900 = 1520
        (1800.0, [2, 2, 2, 1]),  # 0.8 x 1800 = 1440
        (1000.0, [1] * 7),
        (100.0, [1] * 7),  # whether one fits, only it can tell
    ],
)
def test_runs_that_share_a_process_fit_into_four_fifths_of_the_device(
    memory_mib: float, expected: list[int], task: MakeTask
) -> None:
    assert _packed(["narrow"] * 7, task, memories=[memory_mib]) == expected


def test_a_row_that_was_not_probed_has_a_gpu_for_itself(task: MakeTask) -> None:
    assert _packed(["unknown"] * 3, task, memories=[80_000.0]) == [1, 1, 1]
    assert _packed(["unknown", "small", "small"], task, memories=[80_000.0]) == [1, 2]


def test_a_number_that_is_asked_for_holds_for_rows_that_were_not_probed(task: MakeTask) -> None:
    assert _packed(["requested"] * 9, task, memories=[80_000.0]) == [8, 1]
    assert _packed(["requested", "small", "small"], task, memories=[80_000.0]) == [3]
    assert _packed(["requested", "narrow", "narrow"], task, memories=[1000.0]) == [2, 1]


def test_tasks_with_other_plugins_or_isolated_ones_share_no_process(task: MakeTask) -> None:
    plugin = Plugin("a.py", sha256="0", module="a")
    tasks = [task("one"), task("two", plugins=(plugin,)), task("three", plugins=(plugin,))]
    groups = pack_tasks(tasks, 1, lambda _: 3, [math.inf])
    assert [len(group) for group in groups] == [1, 2]
    tasks = [task("one"), task("two"), task("three", isolation="process"), task("four")]
    assert [len(group) for group in pack_tasks(tasks, 1, lambda _: 3, [math.inf])] == [2, 1, 1]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Device]]:
    """Pretend that there are GPUs of some memory, in MiB."""

    def make(*memories: int) -> list[Device]:
        actual = [SimpleNamespace(total_memory=memory * 2**20) for memory in memories]
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: actual[index])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        devices = [Device("cuda", index) for index in range(len(memories))]
        assert [memory_mib(device) for device in devices] == list(memories)
        return devices

    return make


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("memories", "runs_per_process", "expected"),
    [
        ((16_384,), None, {4, 2}),
        ((16_384,), 2, {2}),  # --jobs
        ((16_384,), 6, {6}),
        ((4096,), None, {3}),  # 0.8 x 4096 = 3277 MiB
        ((4096,), 6, {3}),
        ((16_384, 2048), None, {1}),  # they fit on the smallest, and may come to it
        ((16_384, 1024), None, {3}),  # they fit on the largest alone: three for each worker
    ],
)
def test_runs_are_packed_for_the_smallest_device_that_has_room_for_one(
    memories: tuple[int, ...],
    runs_per_process: int | None,
    expected: set[int],
    task: MakeTask,
    gpus: Callable[..., list[Device]],
    fake: FakeWorkers,
) -> None:
    fake.store.save_probe("row", {**MEASURED, **PROBE})
    tasks = [task("done", key=f"r{n}", probe="row") for n in range(6)]
    backend = Local(gpus(*memories), fake.command)
    schedule(tasks, backend, fake.store, fake.diary, Limits(runs_per_process))
    assert set(fake.diary.runs_per_process) == expected


def test_runs_that_fit_on_the_large_devices_alone_are_packed_for_these(task: MakeTask) -> None:
    assert _packed(["wide", "narrow", "narrow"], task, memories=[1000.0, 10_000.0]) == [1, 1, 1]
    assert _packed(["narrow"] * 4, task, memories=[1800.0, 10_000.0]) == [2, 2]
    assert _packed(["narrow"] * 4, task, memories=[600.0, 10_000.0]) == [3, 1]
