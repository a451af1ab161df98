"""``ablate gate``; importing this file is cheap, as it is of every command."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import (
    RESULTS,
    Device,
    Fresh,
    Jobs,
    Overrides,
    Plugins,
    Results,
    Seeds,
    Spec,
    load,
    numbers,
)
from ablate.errors import SpecError

if TYPE_CHECKING:
    from ablate.api.gating import Blessed, Gated


@guarded
def gate(  # noqa: PLR0913 - one argument for every option of the command
    spec: Spec,
    reference: Annotated[
        Path, typer.Option(metavar="FILE", help="The reference; --bless writes one.")
    ],
    bless: Annotated[
        bool, typer.Option("--bless", help="Write the reference from the runs that there are.")
    ] = False,
    widen: Annotated[
        bool, typer.Option("--widen", help="With --bless: let checks become looser.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts for a CI server too.")
    ] = None,
    seeds: Seeds = None,
    device: Device = "auto",
    jobs: Jobs = None,
    overrides: Overrides = None,
    results: Results = RESULTS,
    fresh: Fresh = False,
    stored: Annotated[
        bool,
        typer.Option("--stored", help="Train nothing: judge what is stored, whoever made it."),
    ] = False,
    plugins: Plugins = None,
) -> int:
    """Hold an experiment against a reference: exit 1, and say why, when a number leaves it.

    What is missing is trained first.

    Examples:
      ablate gate experiments/pe.yaml --reference pe.reference.yaml --bless --seeds 1,2,3,4,5,6,7

      ablate gate experiments/pe.yaml --reference pe.reference.yaml --junit gate.xml
    """
    options: Mapping[str, Any] = {
        "reference": reference,
        "seeds": numbers(seeds),
        "device": device,
        "jobs": jobs,
        "overrides": overrides or (),
        "results": results,
        "fresh": fresh,
        "stored": stored,
    }
    _refuse("--fresh", "--stored", are_both=fresh and stored)
    _refuse("--junit", "--bless", are_both=bless and junit is not None)
    if widen and not bless:
        raise SpecError("--widen is for --bless; a gate changes no reference")
    from ablate.api import gating

    load(plugins)
    if bless:
        _show_blessed(gating.bless(spec, widen=widen, **options))
        return 0
    gated = gating.gate(spec, junit=junit, **options)
    _show(gated)
    return gated.exit_status


def _refuse(one: str, other: str, *, are_both: bool) -> None:
    if are_both:
        raise SpecError(f"{one} and {other} exclude each other; drop one")


def _show(gated: Gated) -> None:
    from ablate.report.gate import gate_text

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    told = gate_text(gated.verdicts, gated.remarks, width, is_coloured=is_terminal)
    typer.echo(told, nl=False)


def _show_blessed(blessed: Blessed) -> None:
    for text in (*blessed.widened, *blessed.moved):
        typer.echo(text)
    names = ", ".join(blessed.reference.checks)
    typer.echo(f"{blessed.path} is blessed: {names}")
