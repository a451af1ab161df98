"""``ablate compare``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import print_or_write, waiting

Name = Annotated[
    str,
    typer.Argument(
        help="An experiment, a folder of results, or [b]experiment@commit[/b] for the tables of a "
        "commit."
    ),
]


@guarded
def compare(  # noqa: PLR0913 - one argument for every option of the command
    before: Name,
    after: Name,
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC", help="The experiment to compare in two folders. Default: all runs."
        ),
    ] = None,
    as_json: options.AsJson = False,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="terminal, markdown, csv or json."),
    ] = None,
    output: options.Output = None,
    wide: Annotated[bool, typer.Option("--wide", help="Print all columns side by side.")] = False,
    sentences: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Show the N sentences that are translated most differently."
        ),
    ] = 5,
    results: options.Results = options.RESULTS,
    plugins: options.Plugins = None,
) -> None:
    """Compare two experiments, two folders of results or two commits, row by row.

    Rows are matched by spec, otherwise by their changes, otherwise by name.

    Examples:
      ablate compare results-before results-after pe

      ablate compare pe@HEAD~3 pe
    """
    from ablate import api
    from ablate.report import format_of
    from ablate.report.comparison import FORMATS

    form = options.parse_format(form, as_json=as_json)
    with waiting("reading runs"):
        compared = api.compare(before, after, spec, results=results, n_sentences=sentences)
    form = form or ("terminal" if output is None else format_of(output, FORMATS))
    print_or_write(partial(compared.text, form), output, is_wide=wide)
