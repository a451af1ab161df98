"""``ablate report``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import print_table, waiting


@guarded
def report(  # noqa: PLR0913 - one argument for every option of the command
    spec: options.Spec,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="terminal, markdown, latex, csv, by-seed, json, html, or a format of a plugin. "
            "Default: the format of the file's suffix.",
        ),
    ] = None,
    output: options.Output = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Column headers in lower case, as in [b]bleu_test,verdict[/b]; or [b]all[/b]; or "
            "[b]compact[/b], the default of LaTeX and CSV.",
        ),
    ] = None,
    layout: Annotated[
        Literal["ours", "vaswani", "narang"],
        typer.Option(help="ours, or that of Vaswani et al. 2017 or Narang et al. 2021."),
    ] = "ours",
    wide: Annotated[
        bool, typer.Option("--wide", help="Print all columns side by side in the terminal.")
    ] = False,
    notes: options.Notes = False,
    as_json: options.AsJson = False,
    seeds: options.Seeds = None,
    only: options.Only = None,
    overrides: options.Overrides = None,
    results: options.Results = options.RESULTS,
    plugins: options.Plugins = None,
) -> None:
    """Print the table of an experiment from stored runs.

    Examples:
      ablate report experiments/pe.yaml --output pe.tex

      ablate report experiments/pe.yaml --output pe.html

      ablate report experiments/pe.yaml --format markdown --columns bleu,verdict,params
    """
    from ablate import api
    from ablate.report import format_class

    form = options.parse_format(form, as_json=as_json)
    if form is not None:
        format_class(form)
    with waiting("reading runs"):
        outcome = api.report(
            spec,
            seeds=options.parse_seeds(seeds),
            only=only or (),
            overrides=overrides or (),
            results=results,
            layout=layout,
        )
    chosen = columns.split(",") if columns else None
    print_table(outcome.table, form, output, chosen, is_wide=wide, has_all_notes=notes)
