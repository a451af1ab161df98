"""The backends by name; a module and its optional packages are imported when it is opened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from ablate.errors import SpecError
from ablate.wording import no_such

if TYPE_CHECKING:  # it imports PyTorch
    from ablate.runner.backends.contract import Backend, BackendRequest


@dataclass(frozen=True)
class BackendEntry:
    """A backend that is not imported yet: a module of its name, with an ``open_backend``."""

    options: tuple[str, ...] = ()  # that it alone has
    # that must be installed for it, by the extra with the backend's name; empty: none
    package: str = ""


BACKENDS: Mapping[str, BackendEntry] = {
    "local": BackendEntry(),
    "ray": BackendEntry(("address",), "ray"),
    "slurm": BackendEntry(
        ("slurm_partition", "slurm_time", "gpus_per_task", "slurm", "detach"), "submitit"
    ),
}

NAMES = tuple(BACKENDS)


def open_backend(name: str, request: BackendRequest) -> Backend:
    """Return the backend with this name, ready for tasks."""
    if name not in BACKENDS:
        raise SpecError(no_such("backend", name, NAMES))
    entry = BACKENDS[name]
    for option in set(request.options) - set(entry.options):
        flag = f"--{option.replace('_', '-')}"
        owners = [other for other, each in BACKENDS.items() if option in each.options]
        owner = f"of --backend {owners[0]}" if owners else "of no backend"
        raise SpecError(f"{flag} is an option {owner}, not of --backend {name}; remove it")
    module = f"ablate.runner.backends.{name}"
    return import_extra(module, [entry.package], "--backend", name).open_backend(request)


def import_extra(module: str, packages: Collection[str], option: str, extra: str) -> ModuleType:
    """Import a module that needs packages of an extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise SpecError(
            f"{option} {extra} needs the package {error.name!r}: "
            f"pip install 'ablate-transformer[{extra}]'"
        ) from error
