"""How a command ends: the exit status, and what it says when something is wrong."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from ablate.errors import AblateError

INTERRUPTED = 130

Given = ParamSpec("Given")


def guarded(command: Callable[Given, int | None]) -> Callable[Given, None]:
    """Turn what a command returns, or raises on purpose, into an exit status.

    A reader that has seen enough (``ablate parts | head``) is no error.
    """

    @functools.wraps(command)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            status = command(*args, **kwargs) or 0
            sys.stdout.flush()
        except AblateError as error:
            typer.echo(str(error), err=True)
            status = error.exit_status
        except KeyboardInterrupt:
            typer.echo("interrupted; the same command continues where this one stopped", err=True)
            status = INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 0
        raise typer.Exit(status)

    return run
