"""``ablate gate``."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import echo, echo_documents, echo_json, print_or_write
from ablate.errors import SpecError

if TYPE_CHECKING:
    from ablate.api import Blessed, Gated


@guarded
def gate(  # noqa: PLR0913 - one argument for every option of the command
    context: typer.Context,
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
    as_json: options.AsJson = False,
    progress: options.ProgressForm = "auto",
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
    if fresh and stored:
        raise SpecError("--fresh and --stored exclude each other; drop one")
    if bless and junit is not None:
        raise SpecError("--junit and --bless exclude each other; drop one")
    if not bless and (widen or repeats is not None):
        option = "--widen" if widen else "--repeats"
        raise SpecError(f"{option} is for --bless; a gate changes no reference")
    from ablate import api
    from ablate.api.completion import made_in_each, opened
    from ablate.api.gate import reference_of
    from ablate.config.contexts import of_context

    template = reference or default_reference(of_context(spec)[0])
    file = reference or default_reference(spec)
    given = options.run_options(context)
    if bless:

        def bless_one(name: str, path: Path) -> Blessed:
            done = api.bless(
                path,
                reference_of(file, name) if name else file,
                given,
                widen=widen,
                repeats=repeats,
                is_stored=stored,
                template=template,
            )
            if not as_json:  # at once: the next context may be refused
                _print_blessed(done)
            return done

        contexts = api.contexts_of(spec, given.overrides)
        with opened(given) if contexts and not stored else nullcontext(given) as given:
            blessed = made_in_each(contexts or {"": spec}, bless_one)
        if as_json:
            echo_documents({name: done.to_json() for name, done in blessed.items()})
        return max(done.exit_status for done in blessed.values())
    gated = api.gate(spec, file, given, junit=junit, is_stored=stored)
    _print_gated(gated, as_json=as_json)
    return gated.exit_status


def _print_blessed(done: Blessed) -> None:
    for text in (*done.loosened, *done.moved, *done.weakened, *done.remarks):
        echo(text)
    for text in done.refused:
        echo(text, err=True)
    echo(f"{done.path} is blessed: {', '.join(done.to_json()['blessed'])}")


def _print_gated(gated: Gated, *, as_json: bool) -> None:
    from ablate.report.gate import gate_text

    if as_json:
        echo_json(gated.to_json())
        return
    render = partial(gate_text, gated.verdicts, gated.remarks)
    print_or_write(render, None, is_wide=not sys.stdout.isatty())


def default_reference(spec: Path) -> Path:
    """Return the name of an experiment's reference: with its folders below ``experiments``."""
    from ablate.config import shipped
    from ablate.config.contexts import of_context

    file, context = of_context(spec)
    path = shipped.resolve(file).resolve()
    root = next((folder for folder in path.parents if folder.name == "experiments"), path.parent)
    parts = (*path.relative_to(root).with_suffix("").parts, *([context] if context else []))
    return Path(f"{'-'.join(parts)}.reference.yaml")
