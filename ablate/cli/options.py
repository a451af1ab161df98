"""The arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ablate.cli.completion import row_names
from ablate.errors import SpecError
from ablate.exports.contract import NAMES as TRACKERS
from ablate.runner.backends.registry import NAMES as BACKENDS

if TYPE_CHECKING:
    from ablate.api import RunOptions

_execution, _measurement, _ray, _slurm = (
    partial(typer.Option, rich_help_panel=heading)
    for heading in ("Execution", "Measurement", "Ray", "Slurm")
)

Spec = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC",
        help="The experiment: a YAML file, or the name of a shipped one; with [b]#NAME[/b] in one "
        "of its contexts.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a value of the baseline, as in [b]training.steps=200[/b]. Repeatable. Runs "
        "with other values are other runs.",
    ),
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="The folder of results.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE", help="A Python file that registers parts. Repeatable."
    ),
]
"""Of a parameter named ``plugins``: `guarded` loads them before the command begins."""
Seeds = Annotated[
    str | None, typer.Option(metavar="1,2,...", help="Use these seeds, not the experiment's.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Select this row. Repeatable. The baseline is named baseline.",
        autocompletion=row_names,
    ),
]
UntilDecided = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=2,
        help="Judge rows at 3, 5, 8, ... seeds, and train more, up to N, of those that are not "
        "decided yet. A trial with these [b]looks[/b].",
    ),
]
Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write to this file, not to standard output.")
]
TrainedRun = "experiment:row:seed, the first characters of a run's hash, or the run's folder."
"""The help of an argument that names a trained run."""
ModelDevice = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda:0", help="The device to compute on.")
]
Device = Annotated[str, _execution(metavar="auto|cpu|cuda|cuda:0,2", help="The devices to use.")]
Backend = Annotated[
    str,
    _execution(
        metavar="|".join(BACKENDS),
        help="Where to train: on this machine, or on a Ray or Slurm cluster (docs/running.md).",
        autocompletion=lambda: list(BACKENDS),
    ),
]
Address = Annotated[
    str | None,
    _ray(
        metavar="local|auto|HOST:PORT",
        help="[b]local[/b] (default): start a cluster on this machine. [b]auto[/b]: connect to "
        "the running cluster of this machine. Otherwise: connect to the cluster of this head node.",
    ),
]
SlurmPartition = Annotated[str | None, _slurm(metavar="NAME", help="The partition.")]
SlurmTime = Annotated[
    str | None,
    _slurm(
        metavar="TIME",
        help="The time limit of a job, in Slurm's format. Default: 4 hours. Runs that need longer "
        "continue in a new job.",
    ),
]
GpusPerTask = Annotated[str | None, _slurm(metavar="N", help="GPUs of each job. Default: none.")]
Slurm = Annotated[
    list[str] | None,
    _slurm(
        metavar="KEY=VALUE",
        help="Any other option of sbatch or submitit, as in [b]account=NAME[/b]. Repeatable. "
        "[b]array_parallelism[/b] limits the jobs that run at the same time; its default is 16.",
    ),
]
Detach = Annotated[
    bool,
    _slurm(
        "--detach", help="Submit the jobs and return. Run the same command again to follow them."
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="|".join(TRACKERS),
        help="Export finished runs for this tracker, into RESULTS/exports. Repeatable.",
        autocompletion=lambda: list(TRACKERS),
    ),
]
Jobs = Annotated[
    int | None,
    _execution(
        min=1,
        metavar="N",
        help="Parallel runs on each GPU; default: as many as fit. On a CPU: the cores to use.",
    ),
]
Engine = Annotated[
    str,
    _execution(
        metavar="auto|eager|data_parallel|cuda_graph|compile|fully_sharded",
        help="How training steps are executed. All engines compute the same function, but may draw "
        "other dropout masks. [b]fully_sharded[/b] is for experiments with "
        "[b]devices_per_run[/b]: the devices split the weights from the start.",
    ),
]


def _stream_events(context: typer.Context, form: str) -> str:
    if form == "json":
        from ablate.console import EventStream

        context.with_resource(redirect_stderr(EventStream(sys.stderr)))
    return form


ProgressForm = Annotated[
    Literal["auto", "json"],
    _execution(
        "--progress",
        callback=_stream_events,
        help="Print progress and messages for people, or as JSON, an object a line.",
    ),
]
NoProbe = Annotated[bool, _measurement("--no-probe", help="Do not measure speed and memory.")]
NoFigures = Annotated[
    bool, typer.Option("--no-figures", envvar="ABLATE_NO_FIGURES", help="Draw no figures.")
]
Notes = Annotated[bool, typer.Option("--notes", help="Print all notes under the table.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train finished runs again.")]
ProbeSeconds = Annotated[
    float | None,
    _measurement(
        min=0.0,
        metavar="S",
        envvar="ABLATE_PROBE_SECONDS",
        help="How long to measure the speed of each row, in seconds. Default: 8, or less for "
        "short runs.",
    ),
]
StallAfter = Annotated[
    float | None,
    _execution(
        min=10.0,
        metavar="S",
        help="Report a worker that has been silent for so many seconds, and kill it after as many "
        "again. Default: four times the longest silence of its phase, at least 120, or 1800 in a "
        "phase that has sent nothing yet.",
    ),
]
RESULTS = Path("results")

_LOOKS = (3, 5, 8, 12, 18, 27)
_OF_RUNS = ("device", "jobs", "engine", "fresh", "probe_seconds", "stall_after")
_OF_BACKENDS = ("address", "slurm_partition", "slurm_time", "gpus_per_task")


def run_options(context: typer.Context) -> RunOptions:
    """Return the options of a command that trains, from the values of all its parameters."""
    from ablate.api import RunOptions

    given = context.params
    source = context.get_parameter_source("probe_seconds")
    if given["no_probe"] and source is not None and source.name == "COMMANDLINE":
        raise SpecError("--probe-seconds and --no-probe exclude each other; drop one")
    return RunOptions(
        **{name: given[name] for name in _OF_RUNS},
        results=Path(given["results"]),  # typer below 0.29 leaves it a text here
        seeds=parse_seeds(given["seeds"]),
        overrides=overrides_of(given),
        probes=not given["no_probe"],
        figures=not given.get("no_figures"),
        log=given.get("log") or (),
        backend=given["backend"],
        backend_options=backend_options(given),
    )


def overrides_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the changes of an experiment that the parameters of a command ask for."""
    overrides, most = tuple(given["overrides"] or ()), given.get("until_decided")
    if most is None:
        return overrides
    if given["seeds"] is not None:
        raise SpecError("--seeds and --until-decided exclude each other; drop one")
    return *overrides, f"looks={[*(n for n in _LOOKS if n < most), most]}"


def backend_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a backend that were given; those of ``--slurm`` are one per line."""
    options = {name: given[name] for name in _OF_BACKENDS if given[name] is not None}
    if given["slurm"]:
        options["slurm"] = "\n".join(given["slurm"])
    return options | ({"detach": "yes"} if given.get("detach") else {})


def parse_format(form: str | None, *, as_json: bool) -> str | None:
    """Return the name of a format; ``--json`` is that of JSON, and goes with no other."""
    if as_json and form not in (None, "json"):
        raise SpecError(f"--json and --format {form} exclude each other; remove one")
    return "json" if as_json else form


def parse_seeds(seeds: str | None) -> tuple[int, ...] | None:
    """Return comma-separated seeds as numbers."""
    if seeds is None:
        return None
    try:
        return tuple(int(seed) for seed in seeds.split(","))
    except ValueError:
        raise SpecError(f"--seeds {seeds}: seeds are whole numbers, as in --seeds 1,2,3") from None
