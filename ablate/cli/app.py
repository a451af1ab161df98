"""All commands of ``ablate``.

Importing this package is cheap, so that ``--help`` answers at once: a command imports what it needs
when it is called.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ablate import lazy_dynamo
from ablate.cli.check import check
from ablate.cli.compare import compare
from ablate.cli.corpora import corpora_app
from ablate.cli.doctor import doctor
from ablate.cli.gate import gate
from ablate.cli.guard import INTERRUPTED, Command, Commands
from ablate.cli.init import init
from ablate.cli.inspect import inspect
from ablate.cli.output import echo
from ablate.cli.parts import parts
from ablate.cli.plan import plan
from ablate.cli.report import report
from ablate.cli.run import run
from ablate.cli.runs import runs_app
from ablate.cli.schema import schema
from ablate.cli.status import status
from ablate.cli.translate import translate
from ablate.version import __version__

_GC_THRESHOLD = 10**5
"""New objects before a garbage collection: those of imported libraries stay anyway."""
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, plan, report, compare, gate, check, doctor, inspect, status),
    *(parts, schema, init, translate),
)

app = typer.Typer(
    name="ablate",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(corpora_app, name="corpora")
app.add_typer(runs_app, name="runs")
for command in _COMMANDS:
    app.command(cls=Command)(command)


def _version(value: bool) -> None:
    if value:
        echo(f"ablate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins",
            help="Do not run plugins. Experiments that need one are refused.",
        ),
    ] = False,
) -> None:
    """Take the Transformer apart and measure what each part is worth."""
    if no_plugins:
        from ablate.registry.plugins import without_plugins

        context.with_resource(without_plugins())


def _stop(number: int, _: object) -> None:
    """Stop as cleanly as on Ctrl-C, and once: `timeout` sends the signal twice."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command that the arguments name; never returns."""
    signal.signal(signal.SIGTERM, _stop)
    gc.set_threshold(_GC_THRESHOLD)
    lazy_dynamo.install()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()  # no garbage collection at exit
