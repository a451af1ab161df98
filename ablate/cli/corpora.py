"""``ablate corpora``; cheap to import, like every command."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import Plugins, Spec, load_plugins
from ablate.cli.output import echo

corpora_app = typer.Typer(help="List the corpora; fetch or show one.")

CorpusName = Annotated[str, typer.Argument(metavar="NAME", help="Of the corpus.")]
CorpusOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="An option of the corpus; repeatable."),
]


@corpora_app.callback(invoke_without_command=True)
def corpora(context: typer.Context, plugins: Plugins = None) -> None:
    """List the corpora; fetch or show one.

    Examples:
      ablate corpora

      ablate corpora fetch multi30k --set tgt=fr
    """
    if context.invoked_subcommand is None:
        _list_corpora(plugins)
    elif plugins:
        raise typer.BadParameter(
            f"give it after {context.invoked_subcommand!r}", param_hint="--plugin"
        )


@guarded
def _list_corpora(plugins: Plugins) -> None:
    from ablate import api
    from ablate.cli import show

    load_plugins(plugins)
    show.corpora(api.corpora())


@corpora_app.command("fetch")
@guarded
def fetch(name: CorpusName, options: CorpusOptions = None, plugins: Plugins = None) -> None:
    """Download a corpus into the user's cache, and check it.

    Example: ablate corpora fetch multi30k --set src=en --set tgt=de
    """
    from ablate import api

    load_plugins(plugins)
    api.fetch_corpus(name, options or (), lambda line: echo(line, err=True))


@corpora_app.command("check")
@guarded
def check(
    spec: Spec,
    as_json: Annotated[bool, typer.Option("--json", help="Print the faults as JSON.")] = False,
    plugins: Plugins = None,
) -> None:
    """Print the faults of an experiment's text that show in no single line.

    Exit status 1 if a run would be refused because of one, unless the experiment accepts it.

    Example: ablate corpora check mine.yaml
    """
    from ablate import api
    from ablate.cli import show

    load_plugins(plugins)
    faults = api.check_corpus(spec)
    if as_json:
        show.as_json([asdict(fault) for fault in faults])
    for fault in () if as_json else faults:
        kind = "error" if fault.is_error else "note"
        echo(f"{kind:5}  {fault.name}  {fault.split}: {fault.text}")
    if not (faults or as_json):
        echo("no faults")
    if any(fault.is_error for fault in faults):
        raise typer.Exit(1)


@corpora_app.command("show")
@guarded
def show_corpus(name: CorpusName, options: CorpusOptions = None, plugins: Plugins = None) -> None:
    """Print the sizes of a corpus and its first pairs.

    Example: ablate corpora show synthetic
    """
    from ablate import api
    from ablate.cli import show

    load_plugins(plugins)
    show.corpus(api.show_corpus(name, options or ()))
