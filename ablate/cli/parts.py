"""``ablate parts``; cheap to import, like every command."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import RESULTS, AsJson, Plugins, Results, load_plugins
from ablate.cli.output import echo
from ablate.errors import SpecError


class Catalogue(StrEnum):
    """Formats of the catalogue of parts."""

    terminal = "terminal"
    markdown = "markdown"
    json = "json"


@guarded
def parts(  # noqa: PLR0913 - one argument for every option of the command
    slot: Annotated[
        str | None,
        typer.Argument(metavar="[SLOT]", help="A slot, or the name of a part in any slot."),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A part of the slot.")
    ] = None,
    form: Annotated[
        Catalogue, typer.Option("--format", help="The format of the output.")
    ] = Catalogue.terminal,
    as_json: AsJson = False,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SPEC",
            help="An experiment whose table tells what parts are worth in BLEU; repeatable.",
        ),
    ] = None,
    results: Results = RESULTS,
    plugins: Plugins = None,
) -> None:
    """List every part: its computation, options, source and cost.

    Examples:
      ablate parts

      ablate parts position

      ablate parts rotary
    """
    from ablate import api
    from ablate.cli import catalogue, show

    if as_json and form is not Catalogue.terminal:
        raise SpecError(f"--json and --format {form.value} exclude each other; remove one")
    load_plugins(plugins)
    with show.waiting("counting parameters and FLOPs"):
        listed = api.parts(slot, name, measured=measured or (), results=results)
    if as_json or form is Catalogue.json:
        show.as_json([part.to_json() for part in listed])
    elif form is Catalogue.markdown:
        echo(catalogue.markdown(listed), nl=False)
    else:
        is_one = name is not None or (len(listed) == 1 and listed[0].slot != slot)
        show.parts(listed, is_full=is_one)
