"""Submission, states and cancellation of jobs: of Slurm, or local processes in place of jobs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from submitit import LocalExecutor, SlurmExecutor
from submitit.core.core import Job
from submitit.core.utils import JobPaths
from submitit.helpers import environment_variables

from ablate.processes import descendants
from ablate.runner.backends.contract import ClusterError
from ablate.runner.backends.local import python_path
from ablate.runner.backends.slurm_options import SlurmOptions

_MAX_TIMEOUTS = 10_000  # of a job, after which submitit gives it up; runs progress before each
_COMMAND_TIMEOUT_S = 60
_ACTIVE_STATES = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "STOPPED", "SPECIAL_EXIT"),
)
_UNKNOWN_JOB = "Invalid job id"


def submit(job: Callable[[], None], n: int, options: SlurmOptions, logs: Path) -> list[Job[None]]:
    """Submit a job array.

    Args:
        job: the function that each job calls.
        n: number of jobs.
        options: of the jobs.
        logs: the folder of their logs.

    Raises:
        ClusterError: if the cluster does not accept them.
    """
    kind = SlurmExecutor if options.cluster == "slurm" else LocalExecutor
    try:
        executor = kind(logs, max_num_timeout=_MAX_TIMEOUTS)
        executor.update_parameters(**options.parameters)
        with environment_variables(PYTHONPATH=python_path()):
            return list(executor.submit_array([job] * n))
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise ClusterError(f"the jobs cannot be submitted: {_one_line(error)}") from error


def ended_jobs(jobs: Sequence[str], cluster: str) -> dict[str, str]:
    """Return the states of the jobs that have ended, by id; none if Slurm does not answer now."""
    if not jobs:
        return {}
    return _ended_in_slurm(jobs) if cluster == "slurm" else _ended_locally(jobs)


def cancel(jobs: Sequence[str], cluster: str, *, only_pending: bool = False) -> None:
    """Cancel jobs, upon which they save checkpoints.

    Args:
        jobs: their ids.
        cluster: ``slurm`` or ``local``.
        only_pending: whether to cancel only those that have not begun.
    """
    if cluster == "slurm" and jobs:
        _run_command(["scancel", *(["--state=PENDING"] if only_pending else []), *jobs])
    elif not only_pending:
        for job in jobs:
            if _is_controller(job):
                with suppress(ProcessLookupError):
                    os.kill(int(job), signal.SIGTERM)


def kill(jobs: Sequence[str], cluster: str) -> None:
    """End jobs that do not answer; Slurm does so when a cancelled one has not ended in time."""
    if cluster == "slurm":
        cancel(jobs, cluster)
        return
    for job in filter(_is_controller, jobs):
        for process in (int(job), *descendants(int(job))):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def log_of(job: str, logs: Path) -> Path:
    """Return the file of a job's standard error."""
    return JobPaths(logs, job, 0).stderr


def last_line(job: str, logs: Path) -> str:
    """Return the last line of a job's standard error; empty if there is none."""
    with suppress(OSError):
        lines = log_of(job, logs).read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def remove_pickles(jobs: Sequence[str], logs: Path) -> None:
    """Remove submitit's files of jobs that have ended, except their logs."""
    for job in jobs:
        paths = JobPaths(logs, job, 0)
        for file in (paths.submitted_pickle, paths.result_pickle, paths.submission_file):
            file.unlink(missing_ok=True)


def _ended_in_slurm(jobs: Sequence[str]) -> dict[str, str]:
    arrays = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    squeue = _run_command(
        ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T", f"--jobs={arrays}"]
    )
    if squeue is None or (squeue.returncode != 0 and _UNKNOWN_JOB not in squeue.stderr):
        return {}
    state_of = dict(line.split(maxsplit=1) for line in squeue.stdout.splitlines() if line.strip())
    states = {job: state_of.get(job, "unknown to Slurm").strip() for job in jobs}
    return {job: state for job, state in states.items() if state not in _ACTIVE_STATES}


def _ended_locally(jobs: Sequence[str]) -> dict[str, str]:
    return {job: "ENDED" for job in jobs if not _is_controller(job)}


def _is_controller(job: str) -> bool:
    """Return whether ``job`` is the id of submitit's process for a local job, and alive."""
    try:
        return b"submitit" in Path(f"/proc/{job}/cmdline").read_bytes()
    except OSError:
        return False


def _run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())
