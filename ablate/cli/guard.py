"""How a command ends: its exit status and its error messages."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from ablate.cli.output import echo, echo_json, waiting
from ablate.deprecation import warn_if_deprecated
from ablate.errors import (
    AblateError,
    ChangedPluginWarning,
    DamagedFileWarning,
    DeprecatedWarning,
    DetachedError,
)

INTERRUPTED = 130
_CONTINUED = ("run", "gate", "fetch")
_CONTINUES = "; the same command continues where this one stopped"
_BEGINS_ANEW = (
    "; the same command begins anew; without --fresh it continues the runs that were begun, and "
    "repeats no finished one"
)
_CLOSED_PIPE = 141  # as a shell has it: 128 and the number of SIGPIPE
_JUDGING = ("run", "gate", "check", "doctor")
"""Commands whose exit status is a verdict, which a closed pipe must not hide."""

_OWN_WARNINGS = (ChangedPluginWarning, DamagedFileWarning, DeprecatedWarning)
"""Sentences for the user, not about a line of code."""

_UsageError: Any = typer.BadParameter.__base__
"""Of click, or of the copy of it that new versions of typer have."""

Arguments = ParamSpec("Arguments")


class Commands(TyperGroup):
    """Commands whose options are refused in the sentences of an experiment's mistakes."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        ctx.meta["as_json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # as typer calls it
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _print_warning
                for own in _OWN_WARNINGS:
                    warnings.simplefilter("default", own)
                return super().invoke(ctx)
        except _UsageError as error:
            if error.__cause__ is not None:
                from pydantic import ValidationError  # slow to import, and seldom needed

                from ablate.config.messages import sentence

                if isinstance(error.__cause__, ValidationError):
                    details = error.__cause__.errors(include_url=False)
                    error.message = sentence(details, details[0]["input"])
            if ctx.meta["as_json"]:
                echo_json({"errors": AblateError(error.format_message()).details()})
            raise


class Command(TyperCommand):
    """A command that warns if it is deprecated, or an option that was given."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # as typer calls it
        warn_if_deprecated(ctx.command_path)
        for parameter in self.params:
            source = ctx.get_parameter_source(parameter.name or "")
            if source is not None and source.name == "COMMANDLINE":
                for name in parameter.opts:
                    warn_if_deprecated(f"{ctx.command_path} {name}")
        return super().invoke(ctx)


def guarded(command: Callable[Arguments, int | None]) -> Callable[Arguments, None]:
    """Turn the result of a command, or the error it raises, into an exit status.

    A pipe that its reader closes (``ablate parts | head``) is no error, unless the exit status of
    the command is a verdict. Plugins that were given are loaded before.
    """

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            if plugins := kwargs.get("plugins"):
                from ablate.registry import load_plugin

                for file in cast("list[Path]", plugins):
                    load_plugin(file)
            with waiting("loading PyTorch"):
                import_module("ablate.api")
            status = command(*args, **kwargs) or 0
            sys.stdout.flush()
        except AblateError as error:
            echo(str(error), err=True)
            if kwargs.get("as_json"):
                is_detached = isinstance(error, DetachedError)
                echo_json({"detached": str(error)} if is_detached else {"errors": error.details()})
            status = error.exit_status
        except KeyboardInterrupt:
            more = _CONTINUES if command.__name__ in _CONTINUED else ""
            echo(f"interrupted{_BEGINS_ANEW if kwargs.get('fresh') else more}", err=True)
            status = INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = _CLOSED_PIPE if command.__name__ in _JUDGING else 0
        raise typer.Exit(status)

    return run


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    is_own = issubclass(category, _OWN_WARNINGS)
    text = str(message) if is_own else warnings.formatwarning(message, category, filename, lineno)
    echo(text.rstrip(), err=True)
