"""``ablate gate``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import echo
from ablate.errors import SpecError

if TYPE_CHECKING:
    from ablate.api.gate import Blessed, Gated


@guarded
def gate(  # noqa: PLR0913 - one argument for every option of the command
    spec: options.Spec,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The reference, which --bless writes. Default: [b]pe.reference.yaml[/b] for "
            "pe.yaml, [b]multi30k-pe.reference.yaml[/b] for experiments/multi30k/pe.yaml.",
        ),
    ] = None,
    bless: Annotated[
        bool, typer.Option("--bless", help="Write the measured numbers into the reference.")
    ] = False,
    widen: Annotated[
        bool, typer.Option("--widen", help="With --bless: allow looser checks.")
    ] = False,
    repeats: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --bless: the results of the same runs on another kind of machine.",
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the verdicts as JUnit XML.")
    ] = None,
    seeds: options.Seeds = None,
    device: options.Device = "auto",
    jobs: options.Jobs = None,
    backend: options.Backend = "local",
    address: options.Address = None,
    slurm_partition: options.SlurmPartition = None,
    slurm_time: options.SlurmTime = None,
    gpus_per_task: options.GpusPerTask = None,
    slurm: options.Slurm = None,
    detach: options.Detach = False,
    engine: options.Engine = "auto",
    overrides: options.Overrides = None,
    results: options.Results = options.RESULTS,
    fresh: options.Fresh = False,
    stored: Annotated[
        bool,
        typer.Option("--stored", help="Train nothing: judge stored runs, whatever code made them."),
    ] = False,
    probe_seconds: options.ProbeSeconds = None,
    no_probe: options.NoProbe = False,
    stall_after: options.StallAfter = None,
    plugins: options.Plugins = None,
) -> int:
    """Judge an experiment by a reference. Exit 1 if a number leaves its tolerance.

    Missing runs are trained first.

    Examples:
      ablate gate experiments/pe.yaml --bless --seeds 1,2,3,4,5,6,7

      ablate gate experiments/pe.yaml --junit gate.xml
    """
    for pair, are_both in (
        ("--fresh and --stored", fresh and stored),
        ("--junit and --bless", bless and junit is not None),
    ):
        if are_both:
            raise SpecError(f"{pair} exclude each other; drop one")
    for option, is_given in (("--widen", widen), ("--repeats", repeats is not None)):
        if is_given and not bless:
            raise SpecError(f"{option} is for --bless; a gate changes no reference")
    from ablate import api

    options.load_plugins(plugins)
    reference = reference or default_reference(spec)
    run_options = api.RunOptions(
        seeds=options.parse_seeds(seeds),
        overrides=overrides or (),
        device=device,
        jobs=jobs,
        engine=engine,
        results=results,
        fresh=fresh,
        probe_seconds=probe_seconds,
        probes=not no_probe,
        stall_after=stall_after,
        backend=backend,
        backend_options=options.backend_options(
            slurm,
            detach=detach,
            address=address,
            slurm_partition=slurm_partition,
            slurm_time=slurm_time,
            gpus_per_task=gpus_per_task,
        ),
    )
    if bless:
        blessed = api.bless(
            spec, reference, run_options, widen=widen, repeats=repeats, is_stored=stored
        )
        _print_blessed(blessed)
        return blessed.exit_status
    gated = api.gate(spec, reference, run_options, junit=junit, is_stored=stored)
    _print_gated(gated)
    return gated.exit_status


def default_reference(spec: Path) -> Path:
    """Return the name of an experiment's reference: with its folders below ``experiments``."""
    from ablate.config import shipped

    path = shipped.resolve(spec).resolve()
    root = next((folder for folder in path.parents if folder.name == "experiments"), path.parent)
    name = "-".join(path.relative_to(root).with_suffix("").parts)
    return Path(f"{name}.reference.yaml")


def _print_gated(gated: Gated) -> None:
    from ablate.report.gate import gate_text

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    text = gate_text(gated.verdicts, gated.remarks, width, is_coloured=is_terminal)
    echo(text, nl=False, is_styled=True)


def _print_blessed(blessed: Blessed) -> None:
    for text in (*blessed.loosened, *blessed.moved, *blessed.weakened, *blessed.remarks):
        echo(text)
    for text in blessed.refused:
        echo(text, err=True)
    names = [name for name, check in blessed.reference.checks.items() if check.blessed]
    echo(f"{blessed.path} is blessed: {', '.join(names)}")
