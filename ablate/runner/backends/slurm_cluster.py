"""Jobs of Slurm, or local processes in their place: options, submission, states, cancellation."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit import LocalExecutor, SlurmExecutor
from submitit.core.core import Job
from submitit.core.utils import JobPaths
from submitit.helpers import environment_variables

from ablate.errors import SpecError
from ablate.processes import kill_tree
from ablate.runner.backends.contract import ClusterError
from ablate.runner.backends.local import python_path
from ablate.wording import no_such

CLUSTERS = ("slurm", "local")
_DEFAULT_MINUTES = 240.0
_DEFAULT_N_JOBS = 16
_SIGNAL_DELAY_S = 90
_OWN_OPTIONS = {
    "time": "--slurm-time",
    "partition": "--slurm-partition",
    "gpus_per_task": "--gpus-per-task",
}
_SET_BY_ABLATE = (
    *("additional_parameters", "array", "error", "nodes", "ntasks", "ntasks_per_node"),
    *("num_gpus", "open_mode", "output", "requeue", "signal", "stderr_to_stdout"),
)
_LISTS = ("setup", "teardown", "srun_args")
_MAX_TIMEOUTS = 10_000  # of a job, after which submitit gives it up; runs progress before each
_COMMAND_TIMEOUT_S = 60
_ACTIVE_STATES = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "STOPPED", "SPECIAL_EXIT"),
)
_UNKNOWN_JOB = "Invalid job id"


@dataclass(frozen=True)
class SlurmOptions:
    """The options of a submission."""

    cluster: str  # ``slurm``, or ``local``: processes of this machine in place of jobs, for tests
    parameters: Mapping[str, Any]  # of submitit's executor for the cluster
    n_jobs: int  # the most jobs at the same time
    is_detached: bool  # whether the process ends after the submission

    @property
    def node_parameters(self) -> dict[str, Any]:
        """The parameters that decide which nodes are used."""
        irrelevant = ("time", "timeout_min", "array_parallelism", "signal_delay_s", "job_name")
        return {key: value for key, value in self.parameters.items() if key not in irrelevant}


def read_options(options: Mapping[str, str]) -> SlurmOptions:
    """Parse the options of the command, of which ``slurm`` has lines ``key=value`` for others."""
    more: dict[str, str] = {}
    for key, value in _parse_pairs(options.get("slurm", "")):
        more[key] = f"{more[key]}\n{value}" if key in more and key in _LISTS else value
    cluster = more.pop("cluster", "slurm")
    if cluster not in CLUSTERS:
        raise SpecError(no_such("cluster", cluster, CLUSTERS))
    n_jobs = _parse_int(
        "--slurm array_parallelism", more.pop("array_parallelism", str(_DEFAULT_N_JOBS))
    )
    delay = _parse_int("--slurm signal_delay_s", more.pop("signal_delay_s", str(_SIGNAL_DELAY_S)))
    minutes = minutes_of(options["slurm_time"]) if "slurm_time" in options else _DEFAULT_MINUTES
    n_gpus = _parse_int("--gpus-per-task", options.get("gpus_per_task", "0"), fewest=0)
    parameters: dict[str, Any] = {"signal_delay_s": delay}
    if cluster == "local":
        parameters |= {"timeout_min": minutes, "gpus_per_node": n_gpus}
    else:
        parameters |= {
            "job_name": "ablate",
            "time": math.ceil(minutes),
            "ntasks_per_node": 1,
            "array_parallelism": n_jobs,
            **({"partition": options["slurm_partition"]} if "slurm_partition" in options else {}),
            **({"gpus_per_task": n_gpus} if n_gpus else {}),
            **_submitit_parameters(more),
        }
    return SlurmOptions(cluster, parameters, n_jobs, "detach" in options)


def minutes_of(time: str) -> float:
    """Return a time limit, in one of the forms of ``sbatch --time``, in minutes."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time) or set(time) <= set("0:-"):
        raise SpecError(
            f"--slurm-time {time}: a time is written as Slurm writes it, as in 90 (minutes), "
            "12:00:00 or 1-12:00:00"
        )
    days, dash, clock = time.rpartition("-")
    numbers = [int(number) for number in clock.split(":")]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return (int(days) * 24 + hours) * 60 + minutes + seconds / 60
    if len(numbers) == 3:
        return numbers[0] * 60 + numbers[1] + numbers[2] / 60
    return numbers[0] + sum(numbers[1:]) / 60


def submit(job: Callable[[], None], n: int, options: SlurmOptions, logs: Path) -> list[Job[None]]:
    """Submit a job array."""
    kind = SlurmExecutor if options.cluster == "slurm" else LocalExecutor
    try:
        executor = kind(logs, max_num_timeout=_MAX_TIMEOUTS)
        executor.update_parameters(**options.parameters)
        with environment_variables(PYTHONPATH=python_path()):
            return list(executor.submit_array([job] * n))
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ClusterError(f"the jobs cannot be submitted: {reason}") from error


def ended_jobs(jobs: Sequence[str], cluster: str) -> dict[str, str]:
    """Return the states of the jobs that have ended, by id; none if Slurm does not answer now."""
    if cluster != "slurm" or not jobs:
        return {job: "ENDED" for job in jobs if not _is_controller(job)}
    arrays = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    squeue = _run_command(
        ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T", f"--jobs={arrays}"]
    )
    if squeue is None or (squeue.returncode != 0 and _UNKNOWN_JOB not in squeue.stderr):
        return {}
    state_of = dict(line.split(maxsplit=1) for line in squeue.stdout.splitlines() if line.strip())
    states = {job: state_of.get(job, "unknown to Slurm").strip() for job in jobs}
    return {job: state for job, state in states.items() if state not in _ACTIVE_STATES}


def cancel(jobs: Sequence[str], cluster: str, *, only_pending: bool = False) -> None:
    """Cancel jobs, upon which they save checkpoints."""
    if cluster == "slurm" and jobs:
        _run_command(["scancel", *(["--state=PENDING"] if only_pending else []), *jobs])
    elif not only_pending:
        for job in jobs:
            if _is_controller(job):
                with suppress(ProcessLookupError):
                    os.kill(int(job), signal.SIGTERM)


def kill(jobs: Sequence[str], cluster: str) -> None:
    """End jobs that do not answer."""
    if cluster == "slurm":
        cancel(jobs, cluster)
        return
    for job in filter(_is_controller, jobs):
        kill_tree(int(job))


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


def _parse_pairs(lines: str) -> Iterator[tuple[str, str]]:
    for line in lines.splitlines():
        key, equals, value = line.partition("=")
        key = key.strip().lstrip("-").replace("-", "_")
        if not key or not equals:
            raise SpecError(f"--slurm {line}: write key=value, as in --slurm account=NAME")
        if key in _OWN_OPTIONS:
            raise SpecError(f"--slurm {line}: use {_OWN_OPTIONS[key]} {value}")
        if key in _SET_BY_ABLATE:
            raise SpecError(f"--slurm {line}: {key} is set by ablate; leave it out")
        yield key, value


def _submitit_parameters(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of submitit; others become its ``additional_parameters``."""
    of_submitit: dict[str, Any] = {}
    others: dict[str, Any] = {"requeue": True}
    names = SlurmExecutor._valid_parameters()
    for key, text in options.items():
        value: Any = int(text) if text.isdecimal() else text
        if key in _LISTS:
            value = text.split("\n")
        elif text in ("true", "false"):
            value = text == "true"
        (of_submitit if key in names else others)[key] = value
    return {**of_submitit, "additional_parameters": others}


def _parse_int(name: str, text: str, fewest: int = 1) -> int:
    if not text.isdecimal() or int(text) < fewest:
        raise SpecError(f"{name} {text}: it is a whole number of at least {fewest}")
    return int(text)
