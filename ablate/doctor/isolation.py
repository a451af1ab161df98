"""A check in a process of its own, with a time limit: no crash in it ends the examination."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ablate.doctor.results import CheckResult, Target, broken
from ablate.runner.backends.local import python_path

COMMAND = (sys.executable, "-P", "-m", "ablate.doctor")
"""Starts the process; the name of the check and the target, as JSON, follow."""


def run_in_process(
    name: str,
    target: Target,
    limit_s: float,
    variables: Mapping[str, str],
    command: Sequence[str] = COMMAND,
) -> CheckResult:
    """Make a check in a process of its own; return its result.

    If the process crashes, or gives no answer in time, the result is ``broken``.

    Args:
        name: of the check.
        target: what it is about.
        limit_s: after how many seconds the process is killed.
        variables: of the process' environment, in addition to those of this one.
        command: starts the process.
    """
    process = subprocess.Popen(
        [*command, name, target.to_line()],
        env=environment(variables),
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
    if process.returncode == 0:
        try:
            return CheckResult.from_line(output.strip().rpartition("\n")[2])
        except (ValueError, TypeError):
            return broken(f"gave no result but {output.strip()[-200:]!r}")
    return broken(f"{_describe_exit(process.returncode)}{_last_line(errors)}")


def environment(variables: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the environment of a process that imports the same code as this one."""
    return {**os.environ, **variables, "PYTHONPATH": python_path()}


def _describe_exit(status: int) -> str:
    if status > 0:
        return "failed"
    name = signal.Signals(-status).name
    guess = " (out of memory?)" if -status == signal.SIGKILL else ""
    return f"its process was killed by {name}{guess}"


def _last_line(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else ""
