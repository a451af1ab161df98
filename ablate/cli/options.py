"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.errors import SpecError
from ablate.exports.names import NAMES as TRACKERS
from ablate.runner.backends.registry import NAMES as BACKENDS

_EXECUTION, _MEASUREMENT, _RAY, _SLURM = "Execution", "Measurement", "Ray", "Slurm"
"""Headings of groups of options."""

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The experiment: a YAML file.")]
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
Seeds = Annotated[
    str | None, typer.Option(metavar="1,2,...", help="Use these seeds, not the experiment's.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Select this row. Repeatable. The baseline is named baseline."
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
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:0,2", help="The devices to use.", rich_help_panel=_EXECUTION
    ),
]
Backend = Annotated[
    str,
    typer.Option(
        metavar="|".join(BACKENDS),
        help="Where to train: on this machine, or on a Ray or Slurm cluster (docs/running.md).",
        autocompletion=lambda: list(BACKENDS),
        rich_help_panel=_EXECUTION,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|HOST:PORT",
        help="[b]local[/b] (default): start a cluster on this machine. [b]auto[/b]: connect to "
        "the running cluster of this machine. Otherwise: connect to the cluster of this head node.",
        rich_help_panel=_RAY,
    ),
]
SlurmPartition = Annotated[
    str | None, typer.Option(metavar="NAME", help="The partition.", rich_help_panel=_SLURM)
]
SlurmTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="The time limit of a job, in Slurm's format. Default: 4 hours. Runs that need longer "
        "continue in a new job.",
        rich_help_panel=_SLURM,
    ),
]
GpusPerTask = Annotated[
    str | None,
    typer.Option(
        "--gpus-per-task",
        metavar="N",
        help="GPUs of each job. Default: none.",
        rich_help_panel=_SLURM,
    ),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Any other option of sbatch or submitit, as in [b]account=NAME[/b]. Repeatable. "
        "[b]array_parallelism[/b] limits the jobs that run at the same time; its default is 16.",
        rich_help_panel=_SLURM,
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Submit the jobs and return. Run the same command again to follow them.",
        rich_help_panel=_SLURM,
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
    typer.Option(
        min=1,
        metavar="N",
        help="Parallel runs on each GPU; default: as many as fit. On a CPU: the cores to use.",
        rich_help_panel=_EXECUTION,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|eager|data_parallel|cuda_graph|compile|fully_sharded",
        help="How training steps are executed. All engines compute the same function, but may draw "
        "other dropout masks. [b]fully_sharded[/b] is for experiments with "
        "[b]devices_per_run[/b]: the devices split the weights from the start.",
        rich_help_panel=_EXECUTION,
    ),
]
NoProbe = Annotated[
    bool,
    typer.Option(
        "--no-probe", help="Do not measure speed and memory.", rich_help_panel=_MEASUREMENT
    ),
]
NoFigures = Annotated[
    bool, typer.Option("--no-figures", envvar="ABLATE_NO_FIGURES", help="Draw no figures.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train finished runs again.")]
ProbeSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="S",
        envvar="ABLATE_PROBE_SECONDS",
        help="How long to measure the speed of each row, in seconds. Default: 8, or less for "
        "short runs.",
        rich_help_panel=_MEASUREMENT,
    ),
]
StallAfter = Annotated[
    float | None,
    typer.Option(
        min=10.0,
        metavar="S",
        help="Report a worker that has been silent for so many seconds, and kill it after as many "
        "again. Default: four times the longest silence of its phase, at least 120.",
        rich_help_panel=_EXECUTION,
    ),
]
RESULTS = Path("results")


def load_plugins(plugins: list[Path] | None) -> None:
    """Register the parts of plugins."""
    from ablate.registry import load_plugin

    for file in plugins or ():
        load_plugin(file)


def parse_seeds(seeds: str | None) -> tuple[int, ...] | None:
    """Return comma-separated seeds as numbers."""
    if seeds is None:
        return None
    try:
        return tuple(int(seed) for seed in seeds.split(","))
    except ValueError:
        raise SpecError(f"--seeds {seeds}: seeds are whole numbers, as in --seeds 1,2,3") from None


def backend_options(
    slurm: list[str] | None, *, detach: bool = False, **options: str | None
) -> dict[str, str]:
    """Return the options of a backend that were given; those of ``--slurm`` are one per line."""
    options |= {"slurm": "\n".join(slurm or ()) or None, "detach": "yes" if detach else None}
    return {name: value for name, value in options.items() if value is not None}
