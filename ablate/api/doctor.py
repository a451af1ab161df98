"""``ablate doctor``."""

from __future__ import annotations

from pathlib import Path

from ablate.doctor import Diagnosis, examine
from ablate.runner import devices


def doctor(device: str = "auto", results: Path | str = "results") -> Diagnosis:
    """Check whether this machine is fit for runs: software, folders, devices, engines.

    Takes about a minute. Checks that compute run in a process of their own with a time limit, so
    that a crash is a result, and so is a missing device. Nothing stays on disk but the cache of
    PyTorch's compiler. DeviceError if ``device`` is not as for `RunOptions`.
    """
    devices.check_name(device)
    return examine(device, Path(results))
