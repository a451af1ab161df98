"""``ablate init``."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.output import echo


@guarded
def init(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The name of the new experiment or part.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="SLOT", help="Write a working part for this slot.")
    ] = None,
    study: Annotated[
        str | None,
        typer.Option("--from", metavar="STUDY", help="Start from this shipped study, as in pe."),
    ] = None,
) -> None:
    """Write a file to start from: a commented experiment, a shipped study, or a part.

    Examples:
      ablate init mine && ablate run mine.yaml

      ablate init --from multi30k/pe mine

      ablate init --part position && ablate check my_position.py
    """
    from ablate import api

    echo(api.init(name, part=part, study=study))
