"""``ablate parts``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import console_of_output, echo, echo_json, echo_rendered, waiting


@guarded
def parts(  # noqa: PLR0913 - one argument for every option of the command
    slot: Annotated[
        str | None,
        typer.Argument(metavar="SLOT", help="A slot, or the name of a part in any slot."),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A part of the slot.")] = None,
    form: Annotated[
        Literal["terminal", "markdown", "json"] | None,
        typer.Option("--format", help="The format of the output. Default: terminal."),
    ] = None,
    as_json: options.AsJson = False,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SPEC",
            help="Show the BLEU of parts from the table of this experiment. Repeatable.",
        ),
    ] = None,
    results: options.Results = options.RESULTS,
    plugins: options.Plugins = None,
) -> None:
    """List every part: its computation, options, source and cost.

    Examples:
      ablate parts

      ablate parts position

      ablate parts rotary
    """
    from ablate import api
    from ablate.cli import catalogue

    output = options.parse_format(form, as_json=as_json)
    with waiting("counting parameters and FLOPs"):
        listed = api.parts(slot, name, measured=measured or (), results=results)
    if output == "json":
        echo_json([part.to_json() for part in listed])
    elif output == "markdown":
        echo(catalogue.markdown(listed), nl=False)
    else:
        console = console_of_output()
        with console.capture() as captured:
            if name is not None or (len(listed) == 1 and listed[0].slot != slot):
                catalogue.details(console, listed[0])
            else:
                catalogue.overview(console, listed)
        lines = captured.get().splitlines()
        echo_rendered(lines if console.is_terminal else [line.rstrip() for line in lines])
