"""What there is to compute on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ablate.runner import devices
from ablate.runner.devices import Device, DeviceError, find, n_cores, resolve, worker_slots

CPU = Device("cpu")


def _with_gpus(
    monkeypatch: pytest.MonkeyPatch, n: int, capability: tuple[int, int] = (9, 0)
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


def test_gpus_are_counted_as_cuda_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MIG, of which PyTorch knows nothing until CUDA is initialised."""
    _with_gpus(monkeypatch, 2)
    monkeypatch.setattr(
        torch.cuda, "init", lambda: monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    )
    assert [str(device) for device in find("auto")] == ["cuda:0"]


@pytest.mark.parametrize(
    ("names", "n_gpus", "expected"),
    [
        ("auto", 0, ["cpu"]),
        ("auto", 2, ["cuda:0", "cuda:1"]),
        ("cpu", 2, ["cpu"]),
        ("cuda", 2, ["cuda:0", "cuda:1"]),
        ("cuda:2,0", 3, ["cuda:2", "cuda:0"]),
        ("cuda:1,1", 2, ["cuda:1"]),
    ],
)
def test_devices_are_found_by_name(
    monkeypatch: pytest.MonkeyPatch, names: str, n_gpus: int, expected: list[str]
) -> None:
    _with_gpus(monkeypatch, n_gpus)
    assert [str(device) for device in find(names)] == expected


@pytest.mark.parametrize(
    ("names", "n_gpus", "reason"),
    [
        ("cuda", 0, "no GPU"),
        ("cuda:0", 0, "no GPU"),
        ("cuda:0,3", 2, "this machine has cuda:0, cuda:1"),
        ("gpu", 2, "no device is called 'gpu'"),
        ("cuda:", 2, "no device is called 'cuda:'"),
        ("cuda:-1", 2, "no device is called"),
        ("cuda:x", 2, "no device is called"),
        ("auto:1", 2, "no device is called"),
        ("cpu:3", 2, "no device is called"),
        ("", 0, "no device is called ''"),
    ],
)
def test_a_missing_device_is_an_error_and_nothing_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, names: str, n_gpus: int, reason: str
) -> None:
    _with_gpus(monkeypatch, n_gpus)
    with pytest.raises(DeviceError, match=reason) as caught:
        find(names)
    assert caught.value.exit_status == 2


def test_cuda_that_cannot_start_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old.\nadvice")

    _with_gpus(monkeypatch, 1)
    monkeypatch.setattr(torch.cuda, "init", fail)
    with pytest.raises(DeviceError, match=r"--device cpu: The NVIDIA driver .* too old.$"):
        find("auto")


def test_there_is_one_place_per_core_or_job_and_one_per_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "n_cores", lambda: 6)
    gpus = (Device("cuda", 0), Device("cuda", 1))
    assert worker_slots([CPU], None) == (CPU,) * 6
    assert worker_slots([CPU], 2) == (CPU,) * 2
    assert worker_slots(gpus, None) == gpus
    assert worker_slots(gpus, 2) == gpus


@pytest.mark.parametrize(
    ("affinity", "siblings", "quota", "expected"),
    [
        ({0, 1, 2, 3}, {}, "max 100000", 4),
        ({0, 1, 2, 3}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, "max 100000", 2),
        ({0, 2}, {0: "0,2", 2: "0,2"}, "max 100000", 1),
        ({0, 1, 2, 3}, {}, "250000 100000", 2),
        ({0, 1, 2, 3}, {}, "50000 100000", 1),
    ],
)
def test_cores_are_physical_our_own_and_within_the_quota(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    affinity: set[int],
    siblings: dict[int, str],
    quota: str,
    expected: int,
) -> None:
    for cpu, text in siblings.items():
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    monkeypatch.setattr(devices, "_CPU_TOPOLOGY", tmp_path)
    monkeypatch.setattr(devices, "_CGROUPS", tmp_path)
    assert n_cores() == expected


@pytest.mark.parametrize(
    ("vectors", "tiles", "expected"),
    [(False, False, "fp32"), (True, False, "bf16"), (False, True, "bf16")],
)
def test_auto_is_bf16_on_a_cpu_that_multiplies_in_it(
    monkeypatch: pytest.MonkeyPatch, vectors: bool, tiles: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: vectors)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    assert resolve("auto", CPU) == expected
    assert resolve("fp32", CPU) == "fp32"
    if expected == "fp32":
        with pytest.raises(DeviceError, match="say fp32"):
            resolve("bf16", CPU)


def test_auto_is_bf16_on_a_gpu_that_multiplies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("cuda", 0)
    assert resolve("fp32", gpu) == "fp32"
    _with_gpus(monkeypatch, 1)
    assert resolve("auto", gpu) == resolve("bf16", gpu) == "bf16"
    _with_gpus(monkeypatch, 1, capability=(7, 5))
    assert resolve("auto", gpu) == "fp32"
    with pytest.raises(DeviceError, match="say fp32"):
        resolve("bf16", gpu)


def test_a_gpu_keeps_the_name_that_the_outer_world_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa, GPU-bb")
    assert Device("cuda", 1).environment()["CUDA_VISIBLE_DEVICES"] == "GPU-bb"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert Device("cuda", 1).environment()["CUDA_VISIBLE_DEVICES"] == "1"


def test_huge_pages_keep_the_settings_that_the_outer_world_gave_the_c_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=3")
    both = CPU.environment()["GLIBC_TUNABLES"]
    assert both == "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=3"
    monkeypatch.setenv("GLIBC_TUNABLES", both)  # a run may be started by another
    assert CPU.environment()["GLIBC_TUNABLES"] == both


@pytest.mark.e2e
def test_a_gpu_computes_deterministically_and_adds_up_in_single_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[bool, bool]] = []

    def ask(is_so: bool, *, warn_only: bool) -> None:
        calls.append((is_so, warn_only))

    products = torch.backends.cuda.matmul
    monkeypatch.setattr(torch, "use_deterministic_algorithms", ask)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    before = products.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("high")  # as TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does
    try:
        devices.compute_deterministically()
        assert not products.allow_bf16_reduced_precision_reduction
        assert not products.allow_tf32
    finally:
        products.allow_bf16_reduced_precision_reduction = before
        torch.set_float32_matmul_precision("highest")
    assert calls == [(True, True)]
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
