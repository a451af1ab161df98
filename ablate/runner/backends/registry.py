"""Opening a backend by its name; only then are its module and its packages imported."""

from __future__ import annotations

from ablate.errors import SpecError
from ablate.runner.backends.contract import Backend, BackendRequest
from ablate.runner.backends.names import BACKENDS, NAMES
from ablate.runner.extras import import_extra
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
    wrong = [option for option in request.options if option not in entry.options]
    if wrong:
        raise SpecError(_wrong_option(wrong[0], name))
    module = f"ablate.runner.backends.{entry.module}"
    return import_extra(module, [entry.package], "--backend", name).open_backend(request)


def _wrong_option(option: str, name: str) -> str:
    """Return the message for an option that a backend does not have."""
    flag = f"--{option.replace('_', '-')}"
    owners = [other for other, entry in BACKENDS.items() if option in entry.options]
    if not owners:
        return f"no backend has an option {flag}"
    return f"{flag} is an option of --backend {owners[0]}, not of --backend {name}; remove it"
