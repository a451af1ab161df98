"""``ablate status``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import console_of_output, echo, echo_json
from ablate.wording import format_duration

if TYPE_CHECKING:
    from ablate.api import Session

_WATCH_S = 2.0


@guarded
def status(
    results: options.Results = options.RESULTS,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Repeat until all is done; with --json, print the end alone."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the progress of every `run` and `gate` that writes to the folder of results."""
    from ablate import api

    while True:
        sessions = api.status(results)
        is_last = not watch or not any(session.is_alive for session in sessions)
        if watch and not as_json:
            console_of_output().clear()
        if not as_json:
            print_sessions(sessions, results)
        elif is_last:
            echo_json([asdict(session) for session in sessions])
        if is_last:
            return
        time.sleep(_WATCH_S)


def print_sessions(sessions: Sequence[Session], results: Path) -> None:
    """Print what each call of ``ablate run`` or ``ablate gate`` is doing."""
    if not sessions:
        echo(f"nothing is at work on {results}")
    for session in sessions:
        process = f"{session.experiment}, process {session.pid} on {session.host}"
        if not session.is_alive:
            echo(f"{process}: was killed, last heard of {session.updated}")
            continue
        done = f"{session.n_ended} of {session.n_tasks} done"
        echo(f"{process}: {session.stage}, {done}, at work for {format_duration(session.seconds)}")
        for running in session.running:
            progress = running.phase
            if running.silent_seconds:
                progress += f", no news for {format_duration(running.silent_seconds)}"
            elif running.step is not None and running.seconds_left is not None:
                left = format_duration(running.seconds_left)
                progress = f"step {running.step:,} of {running.n_steps:,}, {left} left"
            task = f"{running.task} on {running.device}, for {format_duration(running.seconds)}"
            echo(f"  {task}: {progress}")
        for failure in session.failures:
            echo(f"  failed: {failure}")
