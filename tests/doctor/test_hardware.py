"""Devices: present, missing, out of reach, in use by others."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ablate.doctor import hardware
from ablate.doctor.hardware import Gpu
from ablate.doctor.results import Target
from ablate.runner import devices
from ablate.runner.provenance import hardware as hardware_of

GIB = 2**30
CARD = Gpu("GPU-aa-bb", "NVIDIA H100", "550.54", 81_559, 0, 0, is_mig=False, processes=())
LISTED = """\
GPU-aa-bb, NVIDIA H100, 550.54, 81559, 40960, 35, Disabled
GPU-cc-dd, NVIDIA A100, 550.54, 40960, 3, [N/A], Enabled
"""
PROCESSES = """\
GPU-aa-bb, 1234, 39000, /usr/bin/python3
GPU-aa-bb, 77, [N/A], "a, b"
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An idle machine without GPUs; its attributes can be set."""
    state = SimpleNamespace(
        cards=None, n_nvml=0, n_cuda=0, load=0.0, free_gib=16.0, free=79.0, init_error=None
    )
    state.is_initialised = False

    def init() -> None:
        if state.init_error is not None:
            raise RuntimeError(state.init_error)
        state.is_initialised = True

    def count() -> int:
        return state.n_cuda if state.is_initialised else state.n_nvml

    def memory(_: int) -> tuple[float, float]:
        return state.free * GIB, 80.0 * GIB

    properties = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, uuid="aa-bb")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "device_count", count)
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(hardware, "query_gpus", lambda: state.cards)
    monkeypatch.setattr(os, "getloadavg", lambda: (state.load, 0.0, 0.0))
    monkeypatch.setattr(devices, "n_cores", lambda: 4)
    monkeypatch.setattr(hardware, "memory", lambda gib: (gib, state.free_gib))
    return state


@pytest.mark.parametrize(
    ("state", "outcome", "reason"),
    [
        ({}, "ok", "16.0 of them free"),
        ({"load": 2.1}, "warning", "a load of 2.1: others compute"),
        ({"free_gib": 1.0}, "warning", "oom"),
        ({"free_gib": None}, "ok", "a load of"),
    ],
)
def test_a_cpu_is_idle_with_free_memory_or_not(
    state: dict[str, Any], outcome: str, reason: str, machine: SimpleNamespace, target: Target
) -> None:
    vars(machine).update(state)
    result = hardware.cpu(target)
    assert result.outcome == outcome
    assert reason in result.sentence
    assert result.figures["cores"] == 4


@pytest.mark.parametrize(
    ("folder", "limit", "use", "cache"),
    [
        (".", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_memory_is_what_the_control_group_grants(  # noqa: PLR0913 - fixtures are arguments
    folder: str,
    limit: str,
    use: str,
    cache: str,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    group = tmp_path / folder
    group.mkdir(exist_ok=True)
    monkeypatch.setattr(devices, "_CGROUPS", tmp_path)
    (group / use).write_text(f"{3 * 2**30}\n")
    (group / "memory.stat").write_text(f"anon 7\n{cache} {2**30}\n")
    for no_limit in ("max", 2**62):
        (group / limit).write_text(f"{no_limit}\n")
        assert hardware.cpu(target).figures["memory_gib"] == hardware_of("cpu")["memory_gib"]
    (group / limit).write_text(f"{7 * 2**29}\n")
    result = hardware.cpu(target)
    assert (result.figures["memory_gib"], result.figures["free_gib"]) == (3.5, 1.5)
    assert "runs may end as oom" in result.sentence


def test_linux_reports_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Path("/proc/meminfo").exists() or (hardware.memory(64.0)[1] or 0) > 0
    monkeypatch.setattr(hardware, "Path", lambda _: Path("/nonexistent"))
    assert hardware.memory(64.0) == (64.0, None)


@pytest.mark.parametrize(
    ("requested", "state", "outcome", "reason"),
    [
        ("auto", {}, "not applicable", "there is no GPU"),
        ("cpu", {}, "not applicable", "the CPU alone"),
        ("cuda:1", {}, "broken", "no GPU that PyTorch can use"),
        ("cuda:1", {"n_nvml": 1, "n_cuda": 1}, "broken", "this machine has cuda:0"),
        ("auto", {"n_nvml": 2, "n_cuda": 2}, "ok", "used: cuda:0, cuda:1"),
        ("auto", {"n_nvml": 8, "n_cuda": 1}, "warning", "CUDA_VISIBLE_DEVICES=MIG-"),  # slices
        ("auto", {"n_nvml": 1, "init_error": "no driver\nand advice"}, "broken", "no driver"),
    ],
)
def test_gpus_are_counted_by_cuda(
    requested: str,
    state: dict[str, Any],
    outcome: str,
    reason: str,
    machine: SimpleNamespace,
    target: Target,
) -> None:
    vars(machine).update(state)
    result = hardware.gpus(replace(target, devices=requested))
    assert result.outcome == outcome
    assert reason in result.sentence
    assert "advice" not in result.sentence
    if outcome in ("ok", "warning"):
        counts = {"gpus_by_cuda": machine.n_cuda, "gpus_by_nvml": machine.n_nvml}
        assert result.figures == counts


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [(None, "built without CUDA: install"), ("13.0", "for CUDA 13.0, the driver is 550.54")],
)
def test_a_gpu_that_pytorch_cannot_use_is_a_warning(
    machine: SimpleNamespace,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    cuda: str | None,
    reason: str,
) -> None:
    machine.cards = [CARD]
    monkeypatch.setattr(torch.version, "cuda", cuda)
    result = hardware.gpus(target)
    assert result.outcome == "warning"
    assert "lists NVIDIA H100, but" in result.sentence
    assert reason in result.sentence


@pytest.mark.parametrize(
    ("changes", "free_gib", "outcome", "reason"),
    [
        ({}, 79.0, "ok", "79.0 of 80.0 GiB free, driver 550.54; no other process"),
        (
            {"used_mib": 20_480, "processes": ("1234 python3, 20.0 GiB",)},
            79.0,
            "warning",
            "20.0 GiB and 0% of its time (1234 python3, 20.0 GiB)",
        ),
        ({"busy_percent": 90}, 79.0, "warning", "does not show"),  # as in a container
        ({"is_mig": True, "used_mib": 80_000}, 79.0, "ok", "a slice of a GPU with MIG: who else"),
        ({"uuid": "GPU-other"}, 79.0, "ok", "nvidia-smi does not describe it: who else is on it"),
        ({"total_mib": 0.0}, 4.0, "warning", "nvidia-smi does not describe it: who else is on it"),
        ({}, 4.0, "warning", "oom"),
    ],
)
def test_a_gpu_is_idle_with_free_memory_or_not(
    changes: dict[str, Any],
    free_gib: float,
    outcome: str,
    reason: str,
    machine: SimpleNamespace,
    target: Target,
) -> None:
    machine.cards, machine.free = [replace(CARD, **changes)], free_gib
    result = hardware.gpu(target)
    assert result.outcome == outcome
    assert reason in result.sentence
    assert result.figures["capability"] == "9.0"


def test_nvidia_smi_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        is_processes = command[1].startswith("--query-compute-apps")
        return SimpleNamespace(returncode=0, stdout=PROCESSES if is_processes else LISTED)

    monkeypatch.setattr(subprocess, "run", run)
    first, second = hardware.query_gpus() or []
    assert first.processes == ("1234 python3, 38.1 GiB", "77 a, b, 0.0 GiB")
    assert (first.busy_percent, first.is_mig) == (35, False)
    assert second == Gpu(
        "GPU-cc-dd", "NVIDIA A100", "550.54", 40_960, 3, 0, is_mig=True, processes=()
    )


@pytest.mark.parametrize("how", ["missing", "hangs", "fails"])
def test_without_nvidia_smi_nothing_is_listed(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if how == "missing":
            raise FileNotFoundError(command[0])
        if how == "hangs":
            raise subprocess.TimeoutExpired(command, 1)
        return SimpleNamespace(returncode=9, stdout="No devices were found\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert hardware.query_gpus() is None
