"""Facts about GPUs from the driver: the output of ``nvidia-smi``, which queries NVML."""

from __future__ import annotations

import csv
import io
import subprocess
from dataclasses import dataclass

_FIELDS = "uuid,name,driver_version,memory.total,memory.used,utilization.gpu,mig.mode.current"
_PROCESS_FIELDS = "gpu_uuid,pid,used_memory,process_name"
_LIMIT_S = 20


@dataclass(frozen=True)
class Gpu:
    """One whole GPU; its slices (MIG) are not listed one by one.

    Attributes:
        uuid: as ``GPU-...``.
        is_mig: whether it is cut into slices.
        processes: that compute on it, each with its number, name and memory.
    """

    uuid: str
    name: str
    driver: str
    total_mib: float
    used_mib: float
    busy_percent: int
    is_mig: bool
    processes: tuple[str, ...]


def query_gpus() -> list[Gpu] | None:
    """Return the GPUs of this machine; None without ``nvidia-smi``, or where it fails.

    Source: ``nvidia-smi --help-query-gpu`` and ``--help-query-compute-apps``.
    """
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
            processes=tuple(_process(*row[1:]) for row in processes or () if row[0] == uuid),
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


def _process(pid: str, used: str, name: str) -> str:
    return f"{pid} {name.rpartition('/')[2]}, {_number(used) / 1024:.1f} GiB"
