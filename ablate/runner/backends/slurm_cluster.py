"""Submitting jobs, and what has become of them: of Slurm, and of processes that stand for jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from submitit import LocalExecutor, SlurmExecutor
from submitit.core.core import Job
from submitit.core.utils import JobPaths
from submitit.helpers import environment_variables

from ablate.runner.backends.contract import ClusterError
from ablate.runner.backends.slurm_options import SlurmOptions

_MOST_TIMEOUTS = 10_000  # submitit counts them; every one is followed by some progress
_ASK_WITHIN_S = 60
_AT_WORK = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "STOPPED", "SPECIAL_EXIT"),
)
_UNKNOWN_JOB = "Invalid job id"


def submit(job: Callable[[], None], n: int, options: SlurmOptions, logs: Path) -> list[Job[None]]:
    """Submit a job array.

    Args:
        job: what each of the jobs calls.
        n: how many there are.
        options: of all of them.
        logs: the folder of their logs.

    Raises:
        ClusterError: if the cluster does not take them.
    """
    kind = SlurmExecutor if options.cluster == "slurm" else LocalExecutor
    # The same code as ours, wherever it was imported from
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    try:
        executor = kind(logs, max_num_timeout=_MOST_TIMEOUTS)
        executor.update_parameters(**options.parameters)
        with environment_variables(PYTHONPATH=path):
            return list(executor.submit_array([job] * n))
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise ClusterError(f"the jobs cannot be submitted: {_one_line(error)}") from error


def ended(jobs: Sequence[str], cluster: str) -> dict[str, str]:
    """Return the states of those jobs that are over; nothing if that cannot be known now."""
    if not jobs:
        return {}
    return _ended_in_slurm(jobs) if cluster == "slurm" else _ended_here(jobs)


def cancel(jobs: Sequence[str], cluster: str, *, is_waiting: bool = False) -> None:
    """Cancel jobs, which save what they have.

    Args:
        jobs: their ids.
        cluster: where they are.
        is_waiting: whether only those that have not begun.
    """
    if cluster == "slurm" and jobs:
        _ask(["scancel", *(["--state=PENDING"] if is_waiting else []), *jobs])
    elif not is_waiting:
        for job in jobs:
            if _is_controller(job):
                with suppress(ProcessLookupError):
                    os.kill(int(job), signal.SIGTERM)


def log_of(job: str, logs: Path) -> Path:
    """Return the file with what a job has printed on standard error."""
    return JobPaths(logs, job, 0).stderr


def last_line(job: str, logs: Path) -> str:
    """Return the last line that a job has printed on standard error; empty if there is none."""
    with suppress(OSError):
        lines = log_of(job, logs).read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def remove_pickles(jobs: Sequence[str], logs: Path) -> None:
    """Remove what submitit keeps of jobs that are over, but for their logs."""
    for job in jobs:
        paths = JobPaths(logs, job, 0)
        for file in (paths.submitted_pickle, paths.result_pickle, paths.submission_file):
            file.unlink(missing_ok=True)


def _ended_in_slurm(jobs: Sequence[str]) -> dict[str, str]:
    arrays = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    asked = _ask(
        ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T", f"--jobs={arrays}"]
    )
    if asked is None or (asked.returncode != 0 and _UNKNOWN_JOB not in asked.stderr):
        return {}
    states = dict(line.split(maxsplit=1) for line in asked.stdout.splitlines() if line.strip())
    known = {job: states.get(job, "unknown to Slurm").strip() for job in jobs}
    return {job: state for job, state in known.items() if state not in _AT_WORK}


def _ended_here(jobs: Sequence[str]) -> dict[str, str]:
    return {job: "ENDED" for job in jobs if not _is_controller(job)}


def _is_controller(job: str) -> bool:
    """Return whether a process is there that stands for a job."""
    try:
        return b"submitit" in Path(f"/proc/{job}/cmdline").read_bytes()
    except OSError:
        return False


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_ASK_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())
