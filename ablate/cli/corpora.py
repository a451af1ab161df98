"""``ablate corpora``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import console_of_output, echo, echo_json

corpora_app = typer.Typer(help="List the corpora; fetch or show one.")

CorpusName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the corpus.")]
CorpusOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="An option of the corpus. Repeatable."),
]


@corpora_app.callback(invoke_without_command=True)
def corpora(context: typer.Context, plugins: options.Plugins = None) -> None:
    """List the corpora; fetch or show one.

    Examples:
      ablate corpora

      ablate corpora fetch multi30k --set tgt=fr
    """
    if context.invoked_subcommand is None:
        _list_corpora(plugins=plugins)
    elif plugins:
        raise typer.BadParameter(
            f"give it after {context.invoked_subcommand!r}", param_hint="--plugin"
        )


@guarded
def _list_corpora(*, plugins: options.Plugins) -> None:
    from rich.table import Table
    from rich.text import Text

    from ablate import api

    states = {True: "available", False: "not fetched", None: "needs options"}
    grid = Table.grid(padding=(0, 2))
    for corpus in api.corpora():
        grid.add_row(Text(corpus.name), Text(states[corpus.is_available]), Text(corpus.summary))
    console_of_output().print(grid)


@corpora_app.command("fetch")
@guarded
def fetch(name: CorpusName, values: CorpusOptions = None, plugins: options.Plugins = None) -> None:
    """Download a corpus into the user's cache, and check it.

    Example: ablate corpora fetch multi30k --set src=en --set tgt=de
    """
    from ablate import api

    api.fetch_corpus(name, values or (), lambda line: echo(line, err=True))


@corpora_app.command("check")
@guarded
def check(
    spec: options.Spec,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
) -> None:
    """Print the faults of an experiment's text that show in no single line.

    Exit status 1 if a run would be refused because of one, unless the experiment accepts it.

    Example: ablate corpora check mine.yaml
    """
    from ablate import api

    faults = api.check_corpus(spec)
    if as_json:
        echo_json([asdict(fault) for fault in faults])
    for fault in () if as_json else faults:
        kind = "error" if fault.is_error else "note"
        echo(f"{kind:5}  {fault.name}  {fault.split}: {fault.text}")
    if not (faults or as_json):
        echo("no faults")
    if any(fault.is_error for fault in faults):
        raise typer.Exit(1)


@corpora_app.command("show")
@guarded
def show_corpus(
    name: CorpusName, values: CorpusOptions = None, plugins: options.Plugins = None
) -> None:
    """Print the sizes of a corpus and its first pairs.

    Example: ablate corpora show synthetic
    """
    from rich.table import Table
    from rich.text import Text

    from ablate import api

    corpus, console = api.show_corpus(name, values or ()), console_of_output()
    console.print(Text(f"{corpus.name}  {corpus.src} -> {corpus.tgt}", style="bold"))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("split")
    for header in ("pairs", "source words", "target words", "words per target", "longest"):
        grid.add_column(header, justify="right")
    for split in corpus.splits:
        grid.add_row(
            split.name,
            f"{split.n_pairs:,}",
            f"{split.n_src_words:,}",
            f"{split.n_tgt_words:,}",
            f"{split.n_tgt_words / max(1, split.n_pairs):.1f}",
            f"{split.longest_tgt_words}",
        )
    console.print(grid)
    for source, target in corpus.examples:
        console.print(Text(f"\n{source}\n{target}"))
    for note in corpus.notes:
        console.print(Text(f"\n{note}", style="dim"))
