"""The devices of this machine, and how many runs they can execute at the same time."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ablate.data.cache import cache_folder
from ablate.errors import AblateError, first_line

_CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_HUGE_PAGES = "glibc.malloc.hugetlb=1"


class DeviceError(AblateError):
    """The machine does not have the requested device."""


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about a device on another machine, determined by a process there."""

    hardware: Mapping[str, Any]  # as `provenance.hardware` describes it
    has_bf16: bool  # whether it multiplies in bf16
    memory_mib: float  # what runs may use; infinite for a CPU

    @property
    def names(self) -> tuple[str, str]:
        """What machines must share for the speeds of their runs to be comparable."""
        return self.hardware["device_name"], self.hardware["cpu_kind"]


@dataclass(frozen=True)
class Device:
    """The device, or devices, that a process computes on."""

    kind: Literal["cpu", "cuda"]  # of hardware
    index: int | None = None  # which GPU, as PyTorch counts them; None for the CPU
    node: str = ""  # the name of the machine in its cluster; empty: this one
    # of a device on another machine
    facts: DeviceFacts | None = field(default=None, compare=False, repr=False)
    others: tuple[int, ...] = ()  # the GPUs that a run has beside it

    def __str__(self) -> str:
        name = self.kind if self.index is None else f"{self.kind}:{self.index}"
        return f"{self.node} {name}" if self.node else name

    def environment(self) -> dict[str, str]:
        """Return the environment in which a process sees only this device and `others`.

        A process gets one CPU thread, however many runs there are: the last digits of sums depend
        on the number of threads. Further cores are used by further processes (engine
        `data_parallel`). The C library keeps freed memory for the next step, which the system would
        provide page by page, and takes it in huge pages. oneDNN keeps the kernels that it has
        generated for the shapes of a whole epoch: of its usual 1,024 all are gone when the epoch
        begins again (benchmarks/memory_and_kernels.py).
        """
        gpus = [] if self.index is None else [self.index, *self.others]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # by the driver's names
        tunables = set(filter(None, os.environ.get("GLIBC_TUNABLES", "").split(":")))
        names = map(str, gpus) if visible is None else (visible.split(",")[i].strip() for i in gpus)
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(names),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # for deterministic matrix products
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(cache_folder("inductor")),
            "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the largest that glibc accepts
            "MALLOC_TRIM_THRESHOLD_": str(2**32),
            "MALLOC_TOP_PAD_": str(2**26),
            "GLIBC_TUNABLES": ":".join(sorted({*tunables, _HUGE_PAGES})),
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(2**14),
        }


def compute_deterministically() -> None:
    """Make a GPU compute the same numbers every time, at the price of some speed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling uninitialised memory only helps to find mistakes
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    multiply_in_single_precision()
    # Otherwise partial sums are rounded to bf16 before they are added
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def multiply_in_single_precision() -> None:
    """Switch TF32 off."""
    # Containers of NVIDIA set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which switches it on
    torch.set_float32_matmul_precision("highest")


def memory_mib(device: Device) -> float:
    """Return how much memory a device has; infinite for the CPU, whose runs share no process."""
    if device.facts is not None:
        return device.facts.memory_mib
    if device.kind == "cpu":
        return float("inf")
    return torch.cuda.get_device_properties(device.index).total_memory / 2**20


def find(names: str) -> tuple[Device, ...]:
    """Return the devices of ``auto`` (GPUs, else the CPU), ``cpu``, ``cuda`` or ``cuda:0,2``."""
    if names == "cpu":
        return (Device("cpu"),)
    # Before CUDA is initialised, PyTorch asks NVML, which counts GPUs and not MIG instances
    if torch.cuda.device_count() > 0:
        try:
            torch.cuda.init()
        except RuntimeError as error:  # such as of a driver that is too old
            raise DeviceError(
                f"CUDA cannot start, without which there is --device cpu: {first_line(error)}"
            ) from error
    return find_among(torch.cuda.device_count(), names)


def check_name(names: str) -> None:
    """Raise a `DeviceError` unless devices can be called so, on whatever machine."""
    if not re.fullmatch(r"auto|cpu|cuda(: *\d+ *(, *\d+ *)*)?", names, re.ASCII):
        raise DeviceError(f"no device is called {names!r}; say auto, cpu, cuda, or cuda:0,2")


def find_among(n_gpus: int, names: str) -> tuple[Device, ...]:
    """Return what `find` returns on a machine with ``n_gpus`` GPUs."""
    check_name(names)
    if names == "cpu":
        return (Device("cpu"),)
    _, colon, numbers = names.partition(":")
    gpus = tuple(Device("cuda", index) for index in range(n_gpus))
    if names == "auto":
        return gpus or (Device("cpu"),)
    chosen = dict.fromkeys(int(n) for n in numbers.split(",")) if colon else range(n_gpus)
    if not gpus or max(chosen) >= n_gpus:
        available = "no GPU that PyTorch can use; say --device cpu"
        available = ", ".join(map(str, gpus)) or available
        raise DeviceError(f"{names!r} was asked for, but this machine has {available}")
    return tuple(gpus[index] for index in chosen)


def worker_slots(devices: Iterable[Device], n_jobs: int | None) -> tuple[Device, ...]:
    """Return the device of every process that may run at the same time: each GPU once."""
    return tuple(
        device
        for device in devices
        for _ in range((n_jobs or n_cores()) if device.kind == "cpu" else 1)
    )


def n_at_once(worker_slots: Iterable[Device], n_devices: int) -> int:
    """Return how many runs, each on ``n_devices`` of one machine, are made at a time; 1 or more."""
    of_nodes = Counter(device.node for device in worker_slots)
    return max(1, sum(n_slots // n_devices for n_slots in of_nodes.values()))


def resolve(precision: str, device: Device) -> Literal["fp32", "bf16"]:
    """Return the precision that ``auto`` means on a device; check one that is asked for."""
    if precision != "fp32" and has_bf16(device):
        return "bf16"
    if precision != "bf16":
        return "fp32"
    raise DeviceError(f"training.precision is bf16, which {device} does not compute in; say fp32")


def has_bf16(device: Device) -> bool:
    """Return whether the device multiplies in bf16; others emulate it, slower than fp32."""
    if device.facts is not None:
        return device.facts.has_bf16
    if device.kind == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    major, _ = torch.cuda.get_device_capability(device.index)
    return major >= 8


def n_cores() -> int:
    """Return how many physical cores this process may use, by its affinity and its cgroup."""
    try:
        cpus = os.sched_getaffinity(0)
    except AttributeError:  # some systems lack it
        cpus = set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in cpus:
        siblings = _CPU_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text(encoding="ascii").strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, int(min(len(cores), _quota())))


def _quota() -> float:
    """Return the cores that the control groups grant (version 2 or 1), infinite without a limit."""
    limits = [float("inf")]
    for folder in control_groups():
        with suppress(OSError, ValueError):  # of a group without a limit it is "max"
            quota, period = map(int, (folder / "cpu.max").read_text(encoding="ascii").split())
            limits.append(quota / period)
    with suppress(OSError):
        files = [_CGROUPS / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
        quota, period = (int(file.read_text(encoding="ascii")) for file in files)
        limits += [quota / period] if quota > 0 else []
    return min(limits)


def control_groups() -> tuple[Path, ...]:
    """Return the folders of this process's control groups (version 2), the innermost first."""
    own = "/"
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = _CGROUPS / own.lstrip("/")
    return folder, *folder.parents
