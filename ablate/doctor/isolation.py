"""A check in a process of its own, with a time limit: no crash in it ends the examination."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ablate.doctor.results import CheckResult, Target, broken

COMMAND = (sys.executable, "-P", "-m", "ablate.doctor")
"""Starts the process; the name of the check and the target, as JSON, follow."""


def in_a_process(
    name: str,
    target: Target,
    limit_s: float,
    variables: Mapping[str, str],
    command: Sequence[str] = COMMAND,
) -> CheckResult:
    """Return how a check came out that was made in a process of its own.

    A process that crashes, or gives no answer in time, is itself the result: ``broken``.

    Args:
        name: of the check.
        target: what it is about.
        limit_s: after how many seconds the process is killed.
        variables: of its environment, in addition to ours.
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
        start_new_session=True,  # so that what it has started can be killed with it
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
    return broken(f"{_ending(process.returncode)}{_last_line(errors)}")


def environment(variables: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the environment of a process that imports what this one does."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {**os.environ, **variables, "PYTHONPATH": path}


def _ending(status: int) -> str:
    if status > 0:
        return "failed"
    name = signal.Signals(-status).name
    why = " (out of memory?)" if -status == signal.SIGKILL else ""
    return f"its process was killed by {name}{why}"


def _last_line(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else ""
