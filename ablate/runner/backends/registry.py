"""Opening a backend by its name. It is imported then, and with it what it needs."""

from __future__ import annotations

from importlib import import_module

from ablate.errors import SpecError
from ablate.runner.backends.contract import Backend, BackendRequest
from ablate.runner.backends.names import BACKENDS, NAMES
from ablate.wording import no_such


def open_backend(name: str, request: BackendRequest) -> Backend:
    """Return the backend with this name, ready for tasks.

    Raises:
        SpecError: if there is none, if it lacks a package, or if an option belongs to another one.
        DeviceError: if it lacks the device.
    """
    if name not in BACKENDS:
        raise SpecError(no_such("backend", name, NAMES))
    entry = BACKENDS[name]
    foreign = [option for option in request.options if option not in entry.options]
    if foreign:
        raise SpecError(_foreign(foreign[0], name))
    try:
        module = import_module(f"ablate.runner.backends.{entry.module}")
    except ModuleNotFoundError as error:
        if error.name != entry.package:
            raise
        raise SpecError(
            f"--backend {name} needs the package {entry.package!r}: "
            f"pip install 'ablate-transformer[{name}]'"
        ) from error
    return module.open_backend(request)


def _foreign(option: str, name: str) -> str:
    """Return that a backend has no such option, and which one has."""
    flag = f"--{option.replace('_', '-')}"
    owners = [other for other, entry in BACKENDS.items() if option in entry.options]
    if not owners:
        return f"no backend has an option {flag}"
    return f"{flag} is an option of --backend {owners[0]}, not of --backend {name}; remove it"
