"""What the user asks of Slurm, as submitit's executors take it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from submitit import SlurmExecutor

from ablate.errors import SpecError
from ablate.wording import no_such

CLUSTERS = ("slurm", "local")
_MINUTES = 240.0
_MOST_JOBS = 16
_SIGNAL_DELAY_S = 90
_OWN_OPTIONS = {
    "time": "--slurm-time",
    "partition": "--slurm-partition",
    "gpus_per_task": "--gpus-per-task",
}
_SET_HERE = (
    *("additional_parameters", "array", "error", "nodes", "ntasks", "ntasks_per_node"),
    *("num_gpus", "open_mode", "output", "requeue", "signal", "stderr_to_stdout"),
)
_LISTS = ("setup", "teardown", "srun_args")


@dataclass(frozen=True)
class SlurmOptions:
    """What is submitted, beside the program.

    Attributes:
        cluster: ``slurm``, or ``local``: processes of this machine in place of jobs, for trying.
        parameters: of submitit's executor for it.
        n_jobs: that may be at work at the same time.
        is_detached: whether to leave after submission.
    """

    cluster: str
    parameters: Mapping[str, Any]
    n_jobs: int
    is_detached: bool

    @property
    def of_nodes(self) -> dict[str, Any]:
        """Return what decides on which nodes the jobs are made."""
        irrelevant = ("time", "timeout_min", "array_parallelism", "signal_delay_s", "job_name")
        return {key: value for key, value in self.parameters.items() if key not in irrelevant}


def read_options(options: Mapping[str, str]) -> SlurmOptions:
    """Return what was asked for.

    Args:
        options: of the command: ``slurm_partition``, ``slurm_time``, ``gpus_per_task``, ``detach``,
            and ``slurm``, with a line ``key=value`` for each further one.

    Raises:
        SpecError: if an option makes no sense.
    """
    more = dict(_pairs(options.get("slurm", "")))
    cluster = more.pop("cluster", "slurm")
    if cluster not in CLUSTERS:
        raise SpecError(no_such("cluster", cluster, CLUSTERS))
    n_jobs = _whole("--slurm array_parallelism", more.pop("array_parallelism", str(_MOST_JOBS)))
    delay = _whole("--slurm signal_delay_s", more.pop("signal_delay_s", str(_SIGNAL_DELAY_S)))
    minutes = minutes_of(options["slurm_time"]) if "slurm_time" in options else _MINUTES
    n_gpus = _whole("--gpus-per-task", options.get("gpus_per_task", "0"), fewest=0)
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
            **_further(more),
        }
    return SlurmOptions(cluster, parameters, n_jobs, "detach" in options)


def minutes_of(time: str) -> float:
    """Return a time limit as Slurm writes it in minutes.

    Slurm's forms are ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``,
    ``days-hours:minutes`` and ``days-hours:minutes:seconds`` (sbatch's manual, ``--time``).

    Raises:
        SpecError: if it has none of these forms.
    """
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


def _pairs(lines: str) -> Iterator[tuple[str, str]]:
    for line in lines.splitlines():
        key, equals, value = line.partition("=")
        key = key.strip().lstrip("-").replace("-", "_")
        if not key or not equals:
            raise SpecError(f"--slurm {line}: say key=value, as in --slurm account=NAME")
        if key in _OWN_OPTIONS:
            raise SpecError(f"--slurm {line}: say {_OWN_OPTIONS[key]} {value}")
        if key in _SET_HERE:
            raise SpecError(f"--slurm {line}: {key} is set by ablate; leave it out")
        yield key, value


def _further(options: Mapping[str, str]) -> dict[str, Any]:
    """Return options of submitit, and among these ``additional_parameters``, all others."""
    known = SlurmExecutor._valid_parameters()
    of_submitit = {key: _value(key, text) for key, text in options.items() if key in known}
    others = {key: _value(key, text) for key, text in options.items() if key not in known}
    return {**of_submitit, "additional_parameters": {"requeue": True, **others}}


def _value(key: str, text: str) -> Any:
    if key in _LISTS:
        return [text]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() else text


def _whole(name: str, text: str, fewest: int = 1) -> int:
    if not text.isdecimal() or int(text) < fewest:
        raise SpecError(f"{name} {text}: it is a whole number of at least {fewest}")
    return int(text)
