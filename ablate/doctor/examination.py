"""All checks in order: those of the machine first, then each device by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ablate.doctor.checks import CHECKS, Check
from ablate.doctor.isolation import COMMAND, in_a_process
from ablate.doctor.results import CheckResult, Diagnosis, Target, broken, not_applicable
from ablate.errors import AblateError
from ablate.runner import devices
from ablate.runner.devices import Device

Listener = Callable[[CheckResult], None]


def examine(
    names: str,
    results: Path,
    listener: Listener = lambda _: None,
    checks: Sequence[Check] = CHECKS,
    command: Sequence[str] = COMMAND,
) -> Diagnosis:
    """Make every check, each device's at the same time as those of the others.

    Args:
        names: of devices: ``auto``, ``cpu``, ``cuda``, or GPUs by number, ``cuda:0,2``.
        results: the folder of results.
        listener: is given each result when it is there.
        checks: what to do.
        command: starts the process of a check.
    """
    target = Target(names, results)

    def all_of(device: Device | None) -> list[CheckResult]:
        outcomes = []
        for check in checks:
            if bool(check.kinds) == (device is not None):
                outcomes.append(_run_check(check, target, device, command))
                listener(outcomes[-1])
        return outcomes

    of_machine = all_of(None)
    used = _devices(names, of_machine)
    with ThreadPoolExecutor(max(1, len(used))) as threads:
        of_devices = list(threads.map(all_of, used))
    return Diagnosis(tuple(chain(of_machine, *of_devices)))


def _devices(names: str, results: Sequence[CheckResult]) -> tuple[Device, ...]:
    """Return the devices to check, of those that CUDA has reached.

    A process that counts GPUs may be on them from then on; so the check of the GPUs has counted,
    in a process that has ended, and the examination does not find itself there.
    """
    gpus = next((result for result in results if result.name == "gpus"), None)
    if gpus is not None and gpus.outcome == "broken":
        return ()
    n_gpus = 0 if gpus is None else int(gpus.figures.get("gpus_by_cuda", 0))
    try:
        chosen = devices.find_among(n_gpus, names)
    except AblateError:
        return ()
    return chosen


def _run_check(
    check: Check, target: Target, device: Device | None, command: Sequence[str]
) -> CheckResult:
    """Return how a check comes out, whatever it raises."""
    name = "" if device is None else str(device)
    began = time.perf_counter()
    if device is not None and device.kind not in check.kinds:
        result = not_applicable("CUDA is of GPUs; this is the CPU")
    elif check.limit_s is not None:
        variables = {} if device is None else device.environment()
        about = replace(target, device=name)
        result = in_a_process(check.name, about, check.limit_s, variables, command)
    else:
        result = _guarded(check, target)
    seconds = round(time.perf_counter() - began, 2)
    return replace(result, name=check.name, device=name, seconds=seconds)


def _guarded(check: Check, target: Target) -> CheckResult:
    try:
        return check.examine(target)
    except Exception as error:  # a check must not end the examination
        return broken(f"{type(error).__name__}: {error}")
