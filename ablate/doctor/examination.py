"""The list of checks; those of the machine are made first, then those of each device.

A check that computes runs in a process of its own with a time limit, so that a crash is a result.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from ablate.doctor import computation, environment, hardware
from ablate.doctor.results import CheckResult, Diagnosis, Target, broken, not_applicable, ok
from ablate.errors import AblateError
from ablate.runner import devices
from ablate.runner.backends.local import python_path
from ablate.runner.devices import Device

Kind = Literal["cpu", "cuda"]
_MINUTE_S = 60.0
_GPU: tuple[Kind, ...] = ("cuda",)
_ANY: tuple[Kind, ...] = ("cpu", "cuda")
COMMAND = (sys.executable, "-P", "-m", "ablate.doctor")
"""Starts the process; the name of the check and the fields of the target follow."""


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    examine: Callable[[Target], CheckResult]  # an exception means ``broken``
    limit_s: float | None = None  # of its own process; None for a check that computes nothing
    kinds: tuple[Kind, ...] = ()  # of devices that it is made on; empty for the whole machine


CHECKS = (
    Check("python", environment.python),
    Check("libraries", environment.libraries),
    Check("corpora", environment.corpora),
    Check("cache", environment.cache),
    Check("disk", environment.disk),
    Check("file locks", environment.locks),
    Check("cpu", hardware.cpu),
    Check("gpus", hardware.gpus, _MINUTE_S),
    Check("gpu memory", hardware.gpu, _MINUTE_S, _GPU),
    Check("bf16", computation.bf16, _MINUTE_S, _ANY),
    Check("graph capture", computation.capture, _MINUTE_S, _GPU),
    Check("engine as eager", computation.engines, _MINUTE_S, _ANY),
    Check("runs side by side", computation.side_by_side, _MINUTE_S, _ANY),
    Check("determinism", computation.determinism, _MINUTE_S, _ANY),
    Check("speed", computation.speed, _MINUTE_S, _ANY),
    Check("compile", computation.compiler, 2 * _MINUTE_S, _ANY),
)
"""All checks, in the order of the table."""


def examine(
    names: str,
    results: Path,
    checks: Sequence[Check] = CHECKS,
    command: Sequence[str] = COMMAND,
) -> Diagnosis:
    """Make every check in order; the devices of these names are checked at the same time."""
    target = Target(names, results)

    def run_checks(device: Device | None) -> list[CheckResult]:
        due = [check for check in checks if bool(check.kinds) == (device is not None)]
        return [_run_check(check, target, device, command) for check in due]

    of_machine = run_checks(None)
    # The check of the GPUs has counted them, in a process that has ended. If this process did, CUDA
    # would occupy memory on them, and the checks would report this process as another user.
    gpus = next((result for result in of_machine if result.name == "gpus"), ok(""))
    chosen: tuple[Device, ...] = ()
    if gpus.outcome != "broken":
        with suppress(AblateError):
            chosen = devices.find_among(int(gpus.figures.get("gpus_by_cuda", 0)), names)
    with ThreadPoolExecutor(max(1, len(chosen))) as executor:
        of_devices = executor.map(run_checks, chosen)
    return Diagnosis(tuple(chain(of_machine, *of_devices)))


def run_in_process(
    name: str,
    target: Target,
    limit_s: float,
    variables: Mapping[str, str],
    command: Sequence[str] = COMMAND,
) -> CheckResult:
    """Make a check in a process of its own; ``broken`` if it crashes or exceeds the time limit."""
    process = subprocess.Popen(
        [*command, name, target.devices, str(target.results), target.device],
        env={**os.environ, **variables, "PYTHONPATH": python_path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that its children can be killed with it
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return broken(
            f"gave no answer within {limit_s:g} s and was killed; the device hangs, or others "
            "keep the machine busy: try again when it is idle"
        )
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    status = process.returncode
    if status < 0:
        guess = " (out of memory?)" if -status == signal.SIGKILL else ""
        return broken(f"its process was killed by {signal.Signals(-status).name}{guess}")
    if status > 0:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        return broken(": ".join(["failed", *lines[-1:]]))
    try:
        return CheckResult.from_line(output.strip().rpartition("\n")[2])
    except (ValueError, TypeError):
        return broken(f"gave no result but {output.strip()[-200:]!r}")


def _run_check(
    check: Check, target: Target, device: Device | None, command: Sequence[str]
) -> CheckResult:
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
