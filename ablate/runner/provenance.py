"""Where a number comes from: machine, libraries, code; whether a record is of the present ones."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ablate.registry import digest_of_code
from ablate.runner.devices import Device, DeviceFacts, has_bf16, memory_mib
from ablate.version import __version__
from ablate.wording import and_list

_LIBRARIES = ("torch", "numpy", "tokenizers", "sacrebleu", "safetensors", "pydantic")
_PACKAGE = Path(__file__).parents[1]
_MOST_NAMES = 5


def hardware(device: str) -> dict[str, Any]:
    """Describe the machine and the one device that a run uses, ``cpu`` or ``cuda``."""
    is_cuda, facts = torch.device(device).type == "cuda", _cpu_facts()
    cpu = facts.get("model name") or platform.processor() or platform.machine()
    # Libraries choose kernels by these facts, in which CPUs of one name may differ
    kind = [f"{key} {facts[key]}" for key in ("cpu family", "model", "stepping") if key in facts]
    n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if is_cuda:
        n_bytes = torch.cuda.get_device_properties(device).total_memory
    return {
        "device": "cuda" if is_cuda else "cpu",
        "device_name": torch.cuda.get_device_name(device) if is_cuda else cpu,
        "cpu": cpu,
        "cpu_kind": ", ".join([*kind, torch.backends.cpu.get_cpu_capability()]),
        "threads": torch.get_num_threads(),
        "memory_gib": round(n_bytes / 2**30, 1),
    }


def hardware_of(device: Device) -> dict[str, Any]:
    """Describe a device and its machine, which may be another one."""
    return dict(device.facts.hardware) if device.facts else hardware(str(device))


def versions() -> dict[str, str]:
    """Return the versions of everything that may change a number."""
    result = {"ablate": __version__, "python": platform.python_version()}
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            result[library] = _version(library)
    if torch.version.cuda is not None:
        result["cuda"] = torch.version.cuda
    return result


_version = cache(version)  # called for every task; it reads the metadata from disk


@cache
def git() -> dict[str, Any]:
    """Return the commit that this code, or the installed package, is of, and whether it differs."""
    if _git("ls-files", "--error-unmatch", "version.py") is None:
        try:
            built = json.loads((_PACKAGE / "commit.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"commit": None, "is_clean": None}
        return {key: built[key] for key in ("commit", "is_clean")}
    changes = _git("status", "--porcelain", "--", ".")
    return {"commit": _git("rev-parse", "HEAD"), "is_clean": changes == ""}


def now() -> str:
    """Return the time in UTC, as records say it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def facts_of(device: Device) -> DeviceFacts:
    """Return the facts about a device of this machine."""
    return DeviceFacts(hardware_of(device), has_bf16(device), memory_mib(device))


def stale_reason(record: Mapping[str, Any], device: Device) -> str | None:
    """Return why a record is not of this code and machine, in words; None if it is."""
    if (record.get("git") or {}).get("code") != code_digest():
        return "the code has changed since"
    return other_machine(record, device)


def stale_remarks(
    records: Mapping[tuple[str, int], Mapping[str, Any]], device: Device
) -> list[str]:
    """Return a sentence for each way in which records are not of this code and machine."""
    rows_by_reason: dict[str, list[str]] = {}
    for (row, _), record in records.items():
        reason = stale_reason(record, device)
        if reason is not None:
            rows_by_reason.setdefault(reason, []).append(row)
    return [
        f"{len(rows)} of {len(records)} runs "
        f"({and_list([*dict.fromkeys(rows)], _MOST_NAMES)}) were not made by "
        f"this code on this machine: {reason}; `ablate run --fresh` trains them again"
        for reason, rows in rows_by_reason.items()
    ]


@cache
def code_digest() -> str:
    """Return the fingerprint of the code that runs: the text of every module of the package."""
    return digest_of_code(_PACKAGE)


def other_machine(record: Mapping[str, Any], device: Device) -> str | None:
    """Return which library or hardware of a run differs from the present; None if none does."""
    ours, its = versions(), record.get("versions", {})
    for name in {**ours, **its}:
        if ours.get(name) != its.get(name):
            return f"it was made with {name} {its.get(name)}, and here is {ours.get(name)}"
    ours, its = hardware_of(device), record.get("hardware", {})
    for key in ("device_name", "cpu", "cpu_kind"):
        if ours[key] != its.get(key):
            return f"it was made on {its.get(key)}, and here is {ours[key]}"
    return None


def _git(*args: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", str(_PACKAGE), *args], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


@cache
def _cpu_facts() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
