"""``ablate inspect``; cheap to import, like every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import RESULTS, Plugins, Results, load_plugins
from ablate.cli.output import echo


@guarded
def inspect(  # noqa: PLR0913 - one argument for every option of the command
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="experiment:row:seed, the first characters of a run's hash, or its folder.",
        ),
    ],
    sentence: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The source sentence; the first of the first test set if not."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the decoder is fed; its own translation if not."),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the figures.")] = Path(
        "inspect"
    ),
    device: Annotated[str, typer.Option(metavar="cpu|cuda:0", help="The device.")] = "cpu",
    results: Results = RESULTS,
    plugins: Plugins = None,
) -> None:
    """Draw every head of a trained run for one sentence, and its positions by distance.

    Each figure is written as SVG and PNG, with its numbers as CSV.

    Examples:
      ablate inspect pe:none:1

      ablate inspect pe:none:1 --sentence "the red dog sleeps"
    """
    from ablate import api

    load_plugins(plugins)
    inspection = api.inspect(run, sentence, target, device=device, results=results)
    for path in inspection.save(output):
        echo(path)
    for line in (
        f"sentence: {inspection.source}",
        f"translation: {inspection.translation}",
        *inspection.remarks,
    ):
        echo(line, err=True)
