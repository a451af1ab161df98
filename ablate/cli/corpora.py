"""``ablate corpora``; cheap to import, like every command."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import Plugins, load_plugins
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
