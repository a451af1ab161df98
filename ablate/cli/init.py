"""``ablate init``."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import echo, echo_json


@guarded
def init(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The name of the new experiment or part.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="SLOT", help="Write a working part for this slot.")
    ] = None,
    study: Annotated[
        str | None,
        typer.Option("--from", metavar="STUDY", help="Start from this shipped study, as in pe."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a file to start from: a commented experiment, a shipped study, or a part.

    Examples:
      ablate init mine && ablate run mine.yaml

      ablate init --from multi30k/pe mine

      ablate init --part position && ablate check my_position.py
    """
    from ablate import api

    path = api.init(name, part=part, study=study)
    echo_json({"path": str(path)}) if as_json else echo(path)
