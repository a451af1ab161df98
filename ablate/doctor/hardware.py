"""What there is to compute on, how much of it is free, and who else uses it."""

from __future__ import annotations

import csv
import io
import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from ablate.doctor.results import CheckResult, Figure, Target, broken, not_applicable, ok, warning
from ablate.errors import AblateError, first_line
from ablate.runner import devices, provenance

_GIB = 2**30
_BUSY_CORES = 0.5  # share of the cores; above it, other programs slow measurements down
_LOW_MEMORY_GIB = 2.0
_BUSY_GPU = 0.1  # share of a GPU's memory, or of its time, that others use
_LOW_GPU_MEMORY = 0.1  # share that is free
_FIELDS = "uuid,name,driver_version,memory.total,memory.used,utilization.gpu,mig.mode.current"
_PROCESS_FIELDS = "gpu_uuid,pid,used_memory,process_name"
_LIMIT_S = 20
_GROUP_FILES = (  # limit, use, and a file with the name of the cache in it that can be dropped
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        *("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),  # version 1
        *("memory/memory.stat", "total_inactive_file"),
    ),
)


@dataclass(frozen=True)
class Gpu:
    """One whole GPU; its slices (MIG) are not listed one by one."""

    uuid: str  # as ``GPU-...``
    name: str
    driver: str
    total_mib: float
    used_mib: float
    busy_percent: int
    is_mig: bool  # cut into slices
    processes: tuple[str, ...]  # that compute on it: number, name and memory of each


def cpu(_: Target) -> CheckResult:
    """Check the cores and the memory, and how busy others keep them."""
    n_cores, load = devices.n_cores(), os.getloadavg()[0]
    facts = provenance.hardware("cpu")
    memory_gib, free = memory(facts["memory_gib"])
    figures: dict[str, Figure] = {"cores": n_cores, "load": round(load, 2)}
    figures["memory_gib"] = memory_gib
    text = f"{n_cores} cores of {facts['cpu']}, {memory_gib:g} GiB of memory"
    if free is not None:
        figures["free_gib"] = round(free, 1)
        text += f", {free:.1f} of them free"
        if free < _LOW_MEMORY_GIB:
            return warning(f"{text}; runs may end as oom: close what else is open", **figures)
    if load > _BUSY_CORES * n_cores:
        return warning(
            f"{text}; but a load of {load:.1f}: others compute, so that speeds are too low",
            **figures,
        )
    return ok(f"{text}; a load of {load:.1f}", **figures)


def gpus(target: Target) -> CheckResult:
    """Check that the devices asked for are there, as CUDA counts them.

    NVML, which PyTorch asks first, counts whole GPUs; with MIG a process reaches one slice.
    """
    if target.devices == "cpu":
        return not_applicable("the CPU alone was asked for")
    cards = query_gpus()
    n_listed = torch.cuda.device_count()
    try:
        chosen = devices.find(target.devices)
    except AblateError as error:
        return broken(f"{first_line(error)}{_unused(cards)}", gpus_listed=len(cards or ()))
    n_cuda = torch.cuda.device_count()  # once initialised, CUDA counts and not NVML
    figures = {"gpus_by_cuda": n_cuda, "gpus_by_nvml": n_listed}
    if n_cuda < n_listed:
        return warning(
            f"the driver lists {n_listed} GPUs, of which CUDA reaches {n_cuda}: with MIG, a "
            "process reaches one slice; name it, as in CUDA_VISIBLE_DEVICES=MIG-...",
            **figures,
        )
    if not n_cuda and cards:
        return warning(f"runs are made on the CPU{_unused(cards)}", **figures)
    if not n_cuda:
        return not_applicable("there is no GPU; runs are made on the CPU", **figures)
    names = ", ".join(map(str, chosen))
    return ok(f"CUDA {torch.version.cuda} reaches {n_cuda}; used: {names}", **figures)


def gpu(_: Target) -> CheckResult:
    """Check the memory of a GPU, and whether other processes use it."""
    cards = query_gpus()  # before CUDA starts: afterwards this process is listed, too
    properties = torch.cuda.get_device_properties(0)
    uuid = str(getattr(properties, "uuid", ""))
    card = next((each for each in cards or () if each.uuid.removeprefix("GPU-") == uuid), None)
    free, total = (n_bytes / _GIB for n_bytes in torch.cuda.mem_get_info(0))
    figures: dict[str, Figure] = {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "free_gib": round(free, 1),
        "total_gib": round(total, 1),
    }
    text = (
        f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{free:.1f} of {total:.1f} GiB free"
    )
    if card is None or card.is_mig or not card.total_mib:
        is_slice = card is not None and card.is_mig
        gap = "a slice of a GPU with MIG" if is_slice else "nvidia-smi does not describe it"
        text += f"; {gap}: who else is on it is not known"
    else:
        figures |= {"driver": card.driver, "busy_percent": card.busy_percent}
        figures["other_processes"] = len(card.processes)
        text += f", driver {card.driver}"
        used = card.used_mib / card.total_mib
        if card.processes or used > _BUSY_GPU or card.busy_percent > 100 * _BUSY_GPU:
            others = ", ".join(card.processes) or "processes that this machine does not show"
            return warning(
                f"{text}; others use {card.used_mib / 1024:.1f} GiB and {card.busy_percent}% of "
                f"its time ({others}): speeds measured now are too low",
                **figures,
            )
        text += "; no other process is on it"
    if free / total < _LOW_GPU_MEMORY:
        return warning(f"{text}; little is free: runs may end as oom", **figures)
    return ok(text, **figures)


def _unused(cards: list[Gpu] | None) -> str:
    """Return that there are GPUs which PyTorch cannot use, and why."""
    if not cards:
        return ""
    names = ", ".join(card.name for card in cards)
    reason = (
        f"PyTorch {torch.__version__} is built without CUDA: install a build with it"
        if torch.version.cuda is None
        else f"PyTorch {torch.__version__} is built for CUDA {torch.version.cuda}, the driver is "
        f"{cards[0].driver}: update one of them, and check CUDA_VISIBLE_DEVICES"
    )
    return f"; nvidia-smi lists {names}, but {reason}"


def memory(machine_gib: float) -> tuple[float, float | None]:
    """Return the memory that this process may use, and what is free of it, in GiB.

    It is that of the machine, or less by a control group. None on systems other than Linux.
    """
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        available_kib = dict(line.split(":") for line in lines)["MemAvailable"].split()[0]
    except (OSError, LookupError):
        return machine_gib, None
    granted = [(machine_gib, int(available_kib) / 2**20)]
    for group, (limit, use, stat, cache) in product(devices.control_groups(), _GROUP_FILES):
        with suppress(OSError, ValueError, LookupError):  # of a group without a limit it is "max"
            most, used = (int((group / name).read_text("ascii")) for name in (limit, use))
            counts = dict(line.split() for line in (group / stat).read_text("ascii").splitlines())
            granted.append((most / _GIB, (most - used + int(counts[cache])) / _GIB))
    limits, free = zip(*granted, strict=True)
    return round(min(limits), 1), min(free)


def query_gpus() -> list[Gpu] | None:
    """Return the GPUs of this machine; None without ``nvidia-smi``, or where it fails."""
    cards, processes = _rows("gpu", _FIELDS), _rows("compute-apps", _PROCESS_FIELDS)
    if cards is None:
        return None
    return [
        Gpu(
            uuid=uuid,
            name=name,
            driver=driver,
            total_mib=_number(total),
            used_mib=_number(used),
            busy_percent=int(_number(busy)),
            is_mig=mig == "Enabled",
            processes=tuple(
                f"{pid} {command.rpartition('/')[2]}, {_number(used_mib) / 1024:.1f} GiB"
                for gpu_uuid, pid, used_mib, command in processes or ()
                if gpu_uuid == uuid
            ),
        )
        for uuid, name, driver, total, used, busy, mig in cards
    ]


def _rows(what: str, fields: str) -> list[list[str]] | None:
    command = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if process.returncode:
        return None
    rows = csv.reader(io.StringIO(process.stdout), skipinitialspace=True)
    return [row for row in rows if len(row) == fields.count(",") + 1]


def _number(text: str) -> float:
    """Return a number; 0 where the driver gives none, as in ``[N/A]``."""
    try:
        return float(text)
    except ValueError:
        return 0.0
