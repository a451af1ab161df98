"""All checks in order: those of the machine first, then each device by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ablate.doctor.checks import CHECKS, Check
from ablate.doctor.isolation import COMMAND, run_in_process
from ablate.doctor.results import CheckResult, Diagnosis, Target, broken, not_applicable
from ablate.errors import AblateError
from ablate.runner import devices
from ablate.runner.devices import Device


def examine(
    names: str,
    results: Path,
    checks: Sequence[Check] = CHECKS,
    command: Sequence[str] = COMMAND,
) -> Diagnosis:
    """Make every check, each device's at the same time as those of the others.

    Args:
        names: of devices: ``auto``, ``cpu``, ``cuda``, or GPUs by number, ``cuda:0,2``.
        results: the folder of results.
        checks: to make, in this order.
        command: starts the process of a check.
    """
    target = Target(names, results)

    def run_checks(device: Device | None) -> list[CheckResult]:
        return [
            _run_check(check, target, device, command)
            for check in checks
            if bool(check.kinds) == (device is not None)
        ]

    of_machine = run_checks(None)
    chosen = _devices(names, of_machine)
    with ThreadPoolExecutor(max(1, len(chosen))) as executor:
        of_devices = executor.map(run_checks, chosen)
    return Diagnosis(tuple(chain(of_machine, *of_devices)))


def _devices(names: str, results: Sequence[CheckResult]) -> tuple[Device, ...]:
    """Return the devices to check, of those that CUDA can use.

    This process does not count GPUs itself: CUDA would then occupy memory on them, and the checks
    would report this process as another user. The check of the GPUs has counted them, in a process
    that has ended.
    """
    gpus = next((result for result in results if result.name == "gpus"), None)
    if gpus is not None and gpus.outcome == "broken":
        return ()
    n_gpus = 0 if gpus is None else int(gpus.figures.get("gpus_by_cuda", 0))
    try:
        return devices.find_among(n_gpus, names)
    except AblateError:
        return ()


def _run_check(
    check: Check, target: Target, device: Device | None, command: Sequence[str]
) -> CheckResult:
    """Return the result of a check; an exception is a result, too."""
    name = "" if device is None else str(device)
    start = time.perf_counter()
    if device is not None and device.kind not in check.kinds:
        result = not_applicable("CUDA is of GPUs; this is the CPU")
    elif check.limit_s is not None:
        variables = {} if device is None else device.environment()
        of_device = replace(target, device=name)
        result = run_in_process(check.name, of_device, check.limit_s, variables, command)
    else:
        try:
            result = check.examine(target)
        except Exception as error:  # a check must not end the examination
            result = broken(f"{type(error).__name__}: {error}")
    seconds = round(time.perf_counter() - start, 2)
    return replace(result, name=check.name, device=name, seconds=seconds)
