"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.errors import SpecError
from ablate.exports.names import NAMES as TRACKERS
from ablate.runner.backends.names import NAMES as BACKENDS

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The experiment, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change one value of the baseline, as in [b]training.steps=200[/b]; repeatable. "
        "It is part of the runs' identity.",
    ),
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="The folder of results.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE", help="A Python file that registers parts; repeatable."
    ),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="1,2,...", help="Seeds in place of those of the experiment.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Only this row; repeatable. The baseline is called baseline."
    ),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:0,2", help="The device.")]
Backend = Annotated[
    str,
    typer.Option(
        metavar="|".join(BACKENDS),
        help="Where runs are made: on this machine, or on a cluster; docs/running.md has how.",
        autocompletion=lambda: list(BACKENDS),
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|HOST:PORT",
        help="Of --backend ray: a cluster started on this machine (by default), the one that it "
        "belongs to, or the one of that head node.",
    ),
]
SlurmPartition = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of --backend slurm: the partition.")
]
SlurmTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Of --backend slurm: the time limit of a job, as Slurm writes it; 4 hours by default. "
        "What is not done by then goes on in a new turn.",
    ),
]
GpusPerTask = Annotated[
    str | None,
    typer.Option(
        "--gpus-per-task", metavar="N", help="Of --backend slurm: GPUs of a job; by default none."
    ),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Of --backend slurm: any other option of sbatch or submitit, as in "
        "[b]account=NAME[/b]; array_parallelism is how many jobs are at work at the same time, 16 "
        "by default; repeatable.",
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", help="Of --backend slurm: leave after submission; the same command follows."
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="|".join(TRACKERS),
        help="Export finished runs for this tracker, into RESULTS/exports; repeatable.",
        autocompletion=lambda: list(TRACKERS),
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Parallel runs on each GPU, by default as many as fit; or cores of the CPU.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|eager|data_parallel|cuda_graph|compile|fully_sharded",
        help="How training steps are executed; results are equal up to the draws of dropout. "
        "Runs with [b]devices_per_run[/b] in the experiment have an engine of their own; with "
        "[b]fully_sharded[/b] their devices split the weights too, from the start.",
    ),
]
NoProbe = Annotated[bool, typer.Option("--no-probe", help="Measure no speed and no memory.")]
NoFigures = Annotated[
    bool, typer.Option("--no-figures", envvar="ABLATE_NO_FIGURES", help="Draw no figures.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Repeat finished runs.")]
ProbeSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="S",
        envvar="ABLATE_PROBE_SECONDS",
        help="Seconds for which the speed of each row is measured; by default 8, or less "
        "where runs are short.",
    ),
]
StallAfter = Annotated[
    float | None,
    typer.Option(
        min=10.0,
        metavar="S",
        help="Seconds without a sign of life after which a worker is reported, and killed after as "
        "many again; by default four times the longest silence of its phase, at least 120.",
    ),
]
RESULTS = Path("results")


def load_plugins(plugins: list[Path] | None) -> None:
    """Register the parts of plugins."""
    from ablate.registry import load_plugin

    for file in plugins or ():
        load_plugin(file)


def parse_seeds(seeds: str | None) -> tuple[int, ...] | None:
    """Return comma-separated seeds as numbers.

    Raises:
        SpecError: if one is not a whole number.
    """
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
