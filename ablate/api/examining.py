"""``ablate doctor``."""

from __future__ import annotations

from pathlib import Path

from ablate.doctor import CheckResult, Diagnosis, examine
from ablate.doctor.examination import Listener
from ablate.runner import devices


def doctor(
    device: str = "auto",
    results: Path | str = "results",
    listener: Listener = lambda _: None,
) -> Diagnosis:
    """Check whether this machine is fit for runs: software, folders, devices, engines.

    Takes about a minute. What computes does so in a process of its own with a time limit, so that a
    crash is a result. Nothing is left behind but what PyTorch's compiler keeps in the cache.

    Args:
        device: ``auto``, ``cpu``, ``cuda``, or GPUs by number, ``cuda:0,2``; one that is missing
            is a result too.
        results: the folder of results.
        listener: is given each result when it is there.

    Raises:
        DeviceError: if ``device`` is no name of a device.
    """
    if device.partition(":")[0] not in ("auto", "cpu", "cuda"):
        devices.find_among(0, device)
    return examine(device, Path(results), listener)


__all__ = ["CheckResult", "Diagnosis", "doctor"]
