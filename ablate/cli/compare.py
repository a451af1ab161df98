"""``ablate compare``; cheap to import, like every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import RESULTS, Plugins, Results, load_plugins

Name = Annotated[
    str,
    typer.Argument(
        help="An experiment, a folder of results, or [b]experiment@commit[/b], the tables of a "
        "commit."
    ),
]


@guarded
def compare(  # noqa: PLR0913 - one argument for every option of the command
    before: Name,
    after: Name,
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[SPEC]", help="The experiment of folders; all runs unless given."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="terminal, markdown, csv or json."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to this file, not to standard output."),
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="All columns beside one another.")] = False,
    sentences: Annotated[
        int, typer.Option(min=0, metavar="N", help="Sentences whose translations differ most.")
    ] = 5,
    results: Results = RESULTS,
    plugins: Plugins = None,
) -> None:
    """Compare two experiments, two folders of results or two commits, row by row.

    Rows are matched by spec, else by what they change, else by name.

    Examples:
      ablate compare results-before results-after pe

      ablate compare pe@HEAD~3 pe
    """
    from ablate import api
    from ablate.cli import show

    load_plugins(plugins)
    show.compared(
        api.compare(before, after, spec, results=results, n_sentences=sentences),
        form,
        output,
        is_wide=wide,
    )
