"""``ablate inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.completion import run_names
from ablate.cli.guard import guarded
from ablate.cli.output import echo, echo_json, waiting


@guarded
def inspect(  # noqa: PLR0913 - one argument for every option of the command
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help=options.TrainedRun, autocompletion=run_names),
    ],
    sentence: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The source sentence. Default: the first of the first test set."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="The target sentence for the decoder. Default: its own translation.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the figures.")] = Path(
        "inspect"
    ),
    device: options.ModelDevice = "cpu",
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
) -> None:
    """Draw the attention of every head for one sentence, and the similarity of positions.

    Each figure is written as SVG and PNG, with its numbers as CSV.

    Examples:
      ablate inspect pe:none:1

      ablate inspect pe:none:1 --sentence "the red dog sleeps"
    """
    from ablate import api

    with waiting("loading the model"):
        inspection = api.inspect(run, sentence, target, device=device, results=results)
    with waiting("drawing"):
        files = inspection.save(output)
    if as_json:
        texts = {"source": inspection.source, "translation": inspection.translation}
        echo_json({**texts, "files": list(map(str, files)), "remarks": list(inspection.remarks)})
        return
    for path in files:
        echo(path)
    about = (f"sentence: {inspection.source}", f"translation: {inspection.translation}")
    for line in (*about, *inspection.remarks):
        echo(line, err=True)
