"""Every command of ``ablate``.

Importing this file is cheap, so that ``--help`` answers at once: a command imports what it needs.
"""

from __future__ import annotations

import gc
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ablate import lazy_dynamo
from ablate.cli.check import check
from ablate.cli.compare import compare
from ablate.cli.corpora import corpora_app
from ablate.cli.doctor import doctor
from ablate.cli.gate import gate
from ablate.cli.guard import INTERRUPTED, Commands, guarded
from ablate.cli.inspect import inspect
from ablate.cli.options import (
    RESULTS,
    Address,
    AsJson,
    Backend,
    Detach,
    Device,
    Engine,
    Fresh,
    GpusPerTask,
    Jobs,
    Log,
    NoFigures,
    NoProbe,
    Only,
    Overrides,
    Plugins,
    ProbeSeconds,
    Results,
    Seeds,
    Slurm,
    SlurmPartition,
    SlurmTime,
    Spec,
    StallAfter,
    backend_options,
    load_plugins,
    parse_seeds,
)
from ablate.cli.output import echo
from ablate.cli.parts import parts
from ablate.cli.runs import runs_app, status
from ablate.cli.translate import translate
from ablate.version import __version__

_GC_THRESHOLD = 10**5
"""New objects before a garbage collection: those of imported libraries stay anyway."""

app = typer.Typer(
    name="ablate",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(corpora_app, name="corpora")
app.add_typer(runs_app, name="runs")


class Layout(StrEnum):
    """Layouts of a table."""

    ours = "ours"
    vaswani = "vaswani"
    narang = "narang"


def _version(value: bool) -> None:
    if value:
        echo(f"ablate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins",
            help="Run no file that an experiment or an option names as a plugin; refuse those "
            "that need one.",
        ),
    ] = False,
) -> None:
    """Take the Transformer apart and measure what each part is worth."""
    if no_plugins:
        from ablate.registry.plugins import without_plugins

        context.with_resource(without_plugins())


@app.command()
@guarded
def run(  # noqa: PLR0913 - one argument for every option of the command
    spec: Spec,
    seeds: Seeds = None,
    only: Only = None,
    device: Device = "auto",
    jobs: Jobs = None,
    backend: Backend = "local",
    address: Address = None,
    slurm_partition: SlurmPartition = None,
    slurm_time: SlurmTime = None,
    gpus_per_task: GpusPerTask = None,
    slurm: Slurm = None,
    detach: Detach = False,
    overrides: Overrides = None,
    engine: Engine = "auto",
    results: Results = RESULTS,
    fresh: Fresh = False,
    probe_seconds: ProbeSeconds = None,
    no_probe: NoProbe = False,
    no_figures: NoFigures = False,
    stall_after: StallAfter = None,
    log: Log = None,
    plugins: Plugins = None,
) -> int:
    """Train and measure what is missing, then print the table.

    What is done is never repeated; what was interrupted continues.

    Examples:
      ablate run experiments/pe.yaml

      ablate run experiments/pe.yaml --only none --seeds 1 --set training.steps=200
    """
    from ablate import api
    from ablate.cli import show

    load_plugins(plugins)
    run_options = api.RunOptions(
        seeds=parse_seeds(seeds),
        overrides=overrides or (),
        device=device,
        jobs=jobs,
        engine=engine,
        results=results,
        fresh=fresh,
        probe_seconds=probe_seconds,
        probes=not no_probe,
        figures=not no_figures,
        stall_after=stall_after,
        log=log or (),
        backend=backend,
        backend_options=backend_options(
            slurm,
            detach=detach,
            address=address,
            slurm_partition=slurm_partition,
            slurm_time=slurm_time,
            gpus_per_task=gpus_per_task,
        ),
    )
    finished = api.run(spec, run_options, only=only or ())
    show.table(finished.table)
    return finished.exit_status


@app.command()
@guarded
def plan(  # noqa: PLR0913 - one argument for every option of the command
    spec: Spec,
    seeds: Seeds = None,
    only: Only = None,
    device: Device = "auto",
    jobs: Jobs = None,
    backend: Backend = "local",
    address: Address = None,
    slurm_partition: SlurmPartition = None,
    slurm_time: SlurmTime = None,
    gpus_per_task: GpusPerTask = None,
    slurm: Slurm = None,
    overrides: Overrides = None,
    engine: Engine = "auto",
    results: Results = RESULTS,
    as_json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Show what `run` would do without doing it: rows, sizes, costs, finished runs.

    Example: ablate plan experiments/heads.yaml
    """
    from ablate import api
    from ablate.cli import show

    load_plugins(plugins)
    with show.waiting("checking and counting every row"):
        planned = api.plan(
            spec,
            seeds=parse_seeds(seeds),
            only=only or (),
            device=device,
            jobs=jobs,
            engine=engine,
            overrides=overrides or (),
            results=results,
            backend=backend,
            backend_options=backend_options(
                slurm,
                address=address,
                slurm_partition=slurm_partition,
                slurm_time=slurm_time,
                gpus_per_task=gpus_per_task,
            ),
        )
    if as_json:
        show.as_json(planned.to_json())
    else:
        show.plan(planned)


@app.command()
@guarded
def report(  # noqa: PLR0913 - one argument for every option of the command
    spec: Spec,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="terminal, markdown, latex, csv, by-seed, json, html, or what a plugin adds; that "
            "of the file's suffix unless given.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to this file, not to standard output."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Headers in lower case, as in [b]bleu_test,verdict[/b]; [b]compact[/b], which "
            "LaTeX and CSV have by default; or [b]all[/b].",
        ),
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="Ours, or that of Vaswani et al. 2017 or Narang et al. 2021.")
    ] = Layout.ours,
    wide: Annotated[
        bool, typer.Option("--wide", help="All columns beside one another, in the terminal.")
    ] = False,
    seeds: Seeds = None,
    only: Only = None,
    overrides: Overrides = None,
    results: Results = RESULTS,
    plugins: Plugins = None,
) -> None:
    """Print the table of an experiment from what is stored.

    Examples:
      ablate report experiments/pe.yaml --output pe.tex

      ablate report experiments/pe.yaml --output pe.html

      ablate report experiments/pe.yaml --format markdown --columns bleu,verdict,params
    """
    from ablate import api
    from ablate.cli import show
    from ablate.report import format_class

    load_plugins(plugins)
    if form is not None:
        format_class(form)
    outcome = api.report(
        spec,
        seeds=parse_seeds(seeds),
        only=only or (),
        overrides=overrides or (),
        results=results,
        layout=layout.value,
    )
    chosen = columns.split(",") if columns else None
    show.table(outcome.table, form, output, chosen, is_wide=wide)


app.command()(compare)
app.command()(gate)
app.command()(check)
app.command()(doctor)
app.command()(inspect)
app.command()(status)
app.command()(parts)


@app.command()
@guarded
def schema(plugins: Plugins = None) -> None:
    """Print the JSON Schema of an experiment, for editors.

    Example: ablate schema > experiment.schema.json
    """
    from ablate import api
    from ablate.cli import show

    load_plugins(plugins)
    show.as_json(api.schema())


@app.command()
@guarded
def init(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of the new experiment or part.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="SLOT", help="Write a working part of this slot.")
    ] = None,
    study: Annotated[
        str | None,
        typer.Option("--from", metavar="STUDY", help="Begin with this shipped study, as in pe."),
    ] = None,
) -> None:
    """Write a commented experiment to start from, a shipped study, or a part.

    Examples:
      ablate init mine && ablate run mine.yaml

      ablate init --from multi30k/pe mine

      ablate init --part position && ablate check my_position.py
    """
    from ablate import api

    echo(api.init(name, part=part, study=study))


app.command()(translate)


def main() -> None:
    """Run the command that the arguments name; never returns."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as cleanly as on Ctrl-C
    gc.set_threshold(_GC_THRESHOLD)
    lazy_dynamo.install()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()  # no garbage collection at exit
