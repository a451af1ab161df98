"""``ablate corpora``."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import Command, guarded
from ablate.cli.output import console_of_output, echo, echo_json, waiting

if TYPE_CHECKING:
    from ablate.api import CorpusStatistics

_N_SCRIPTS = 2  # of a side are printed
corpora_app = typer.Typer(help="List the corpora; fetch, check or show one.")

CorpusName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the corpus.")]
CorpusOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="An option of the corpus. Repeatable."),
]


@corpora_app.callback(invoke_without_command=True)
def corpora(
    context: typer.Context,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
) -> None:
    """List the corpora; fetch, check or show one.

    Examples:
      ablate corpora

      ablate corpora fetch multi30k --set tgt=fr
    """
    if context.invoked_subcommand is None:
        _list_corpora(as_json=as_json, plugins=plugins)
    elif plugins or as_json:
        option = "--plugin" if plugins else "--json"
        raise typer.BadParameter(f"give it after {context.invoked_subcommand!r}", param_hint=option)


@guarded
def _list_corpora(*, as_json: bool, plugins: options.Plugins) -> None:
    from rich.table import Table
    from rich.text import Text

    from ablate import api

    if as_json:
        echo_json([asdict(corpus) for corpus in api.corpora()])
        return
    states = {True: "available", False: "not fetched", None: "needs options"}
    grid = Table.grid(padding=(0, 2))
    for corpus in api.corpora():
        grid.add_row(Text(corpus.name), Text(states[corpus.is_available]), Text(corpus.summary))
    console_of_output().print(grid)


@corpora_app.command("fetch", cls=Command)
@guarded
def fetch(name: CorpusName, values: CorpusOptions = None, plugins: options.Plugins = None) -> None:
    """Download a corpus into the user's cache, and check it.

    Example: ablate corpora fetch multi30k --set src=en --set tgt=de
    """
    from ablate import api

    api.fetch_corpus(name, values or (), lambda line: echo(line, err=True))


@corpora_app.command("check", cls=Command)
@guarded
def check(
    spec: options.Spec,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
) -> int:
    """Print the sizes of an experiment's text, and the faults that show in no single line.

    Tokens are those of the baseline's tokenizer. Exit status 1 if a run would be refused because of
    a fault, unless the experiment accepts it.

    Example: ablate corpora check mine.yaml
    """
    from ablate import api

    with waiting("reading the text"):
        corpus = api.check_corpus(spec)
    if as_json:
        echo_json(asdict(corpus))
    else:
        _print_sizes(corpus)
        for note in corpus.notes:
            echo(note)
        for fault in corpus.faults:
            kind = "error" if fault.is_error else "note"
            echo(f"{kind:5}  {fault.name}  {fault.split}: {fault.text}")
        if not corpus.faults:
            echo("no faults")
    return int(any(fault.is_error for fault in corpus.faults))


@corpora_app.command("show", cls=Command)
@guarded
def show_corpus(
    name: CorpusName,
    values: CorpusOptions = None,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
) -> None:
    """Print the sizes of a corpus and its first pairs.

    Example: ablate corpora show synthetic
    """
    from rich.text import Text

    from ablate import api

    with waiting("reading the text"):
        corpus = api.show_corpus(name, values or ())
    console = console_of_output()
    if as_json:
        echo_json(asdict(corpus))
        return
    _print_sizes(corpus)
    for source, target in corpus.examples:
        console.print(Text(f"\n{source}\n{target}"))
    for note in corpus.notes:
        console.print(Text(f"\n{note}", style="dim"))


def _print_sizes(corpus: CorpusStatistics) -> None:
    """Print a line for each side of each split."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("split")
    grid.add_column("pairs", justify="right")
    grid.add_column("side")
    has_tokens = any(split.src.n_tokens is not None for split in corpus.splits)
    for unit in ("words", "tokens") if has_tokens else ("words",):
        for header in (unit, "mean", "longest"):
            grid.add_column(header, justify="right")
    for header in ("unknown",) * has_tokens:
        grid.add_column(header, justify="right")
    grid.add_column("letters")
    for split in corpus.splits:
        references = f" x {split.n_references}" if split.n_references > 1 else ""
        for code, side in ((corpus.src, split.src), (f"{corpus.tgt}{references}", split.tgt)):
            is_first = side is split.src
            cells = [split.name, f"{split.n_pairs:,}"] if is_first else ["", ""]
            sizes = [(side.n_words, side.n_words / max(1, split.n_pairs), side.longest_words)]
            if side.n_tokens is not None:
                sizes.append((side.n_tokens, side.mean_tokens or 0.0, side.longest_tokens or 0))
            for total, mean, longest in sizes:
                cells += [f"{total:,}", f"{mean:.1f}", f"{longest}"]
            cells.insert(2, code)
            cells += [f"{side.unknown_share:.2%}"] if side.unknown_share is not None else []
            shares = (f"{x.lower()} {share:.1%}" for x, share in side.letters.items())
            grid.add_row(*cells, ", ".join(islice(shares, _N_SCRIPTS)))
    console = console_of_output()
    console.print(Text(f"{corpus.name}  {corpus.src} -> {corpus.tgt}", style="bold"))
    console.print(grid)
