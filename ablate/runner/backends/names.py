"""The names and options of the backends, without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BackendEntry:
    """A backend that is not imported yet.

    Attributes:
        module: of this package, with a function ``open_backend``.
        options: that it alone has.
        package: that must be installed for it, by the extra with the backend's name; empty: none.
    """

    module: str
    options: tuple[str, ...] = ()
    package: str = ""


BACKENDS: Mapping[str, BackendEntry] = {
    "local": BackendEntry("local"),
    "ray": BackendEntry("ray", ("address",), "ray"),
    "slurm": BackendEntry(
        "slurm", ("slurm_partition", "slurm_time", "gpus_per_task", "slurm", "detach"), "submitit"
    ),
}

NAMES = tuple(BACKENDS)
