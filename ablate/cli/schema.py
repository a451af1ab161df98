"""``ablate schema``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import echo_data


@guarded
def schema(
    of: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="The schema of what a command prints with [b]--json[/b], as in "
            "[b]runs list[/b]; of [b]errors[/b], [b]detached[/b] or [b]events[/b].",
        ),
    ] = None,
    plugins: options.Plugins = None,
) -> None:
    """Print the JSON Schema of an experiment, for editors, or of what a command prints.

    Examples:
      ablate schema > experiment.schema.json

      ablate schema --of plan
    """
    from ablate import api

    echo_data(json.dumps(api.schema(of), indent=2))
