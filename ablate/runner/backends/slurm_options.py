"""The user's options for Slurm, as parameters of submitit's executors."""

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


@dataclass(frozen=True)
class SlurmOptions:
    """The options of a submission.

    Attributes:
        cluster: ``slurm``, or ``local``: processes of this machine in place of jobs, for tests.
        parameters: of submitit's executor for the cluster.
        n_jobs: the most jobs at the same time.
        is_detached: whether the process ends after the submission.
    """

    cluster: str
    parameters: Mapping[str, Any]
    n_jobs: int
    is_detached: bool

    @property
    def node_parameters(self) -> dict[str, Any]:
        """Return the parameters that decide which nodes are used."""
        irrelevant = ("time", "timeout_min", "array_parallelism", "signal_delay_s", "job_name")
        return {key: value for key, value in self.parameters.items() if key not in irrelevant}


def read_options(options: Mapping[str, str]) -> SlurmOptions:
    """Parse the options of the command.

    Args:
        options: ``slurm_partition``, ``slurm_time``, ``gpus_per_task``, ``detach``, and ``slurm``,
            with a line ``key=value`` for each further one.

    Raises:
        SpecError: if an option is malformed.
    """
    more = dict(_parse_pairs(options.get("slurm", "")))
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
    """Return in minutes a time limit in one of Slurm's forms.

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
    names = SlurmExecutor._valid_parameters()
    of_submitit = {key: _parse_value(key, text) for key, text in options.items() if key in names}
    others = {key: _parse_value(key, text) for key, text in options.items() if key not in names}
    return {**of_submitit, "additional_parameters": {"requeue": True, **others}}


def _parse_value(key: str, text: str) -> Any:
    if key in _LISTS:
        return [text]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() else text


def _parse_int(name: str, text: str, fewest: int = 1) -> int:
    if not text.isdecimal() or int(text) < fewest:
        raise SpecError(f"{name} {text}: it is a whole number of at least {fewest}")
    return int(text)
