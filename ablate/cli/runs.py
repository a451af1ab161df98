"""``ablate runs`` and ``ablate status``; cheap to import, like every command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import RESULTS, AsJson, Results
from ablate.cli.output import echo
from ablate.wording import counted

if TYPE_CHECKING:
    from ablate.api import StoredRun

runs_app = typer.Typer(help="List, show, remove and archive the runs in the folder of results.")

Labels = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN",
        help="As in [b]pe[/b], [b]pe:none[/b] or [b]pe:none:1[/b], or the first characters of a "
        "run's hash.",
    ),
]
Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help="Only runs that are done, diverged, failed, oom, unfinished or unreadable; "
        "repeatable.",
    ),
]
Specs = Annotated[
    list[Path] | None,
    typer.Option(
        "--experiment",
        metavar="SPEC",
        help="An experiment file: say which runs it needs; repeatable.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Remove them; else only say which.")]


@runs_app.command("list")
@guarded
def list_runs(
    labels: Labels = None,
    statuses: Statuses = None,
    specs: Specs = None,
    results: Results = RESULTS,
    as_json: AsJson = False,
) -> None:
    """List stored runs with status, BLEU and size.

    Examples:
      ablate runs list --status failed --status oom

      ablate runs list pe --experiment experiments/pe.yaml
    """
    from ablate import api
    from ablate.cli import show

    if not results.is_dir():
        echo(f"there is no folder {results}", err=True)
    listed = api.runs(results, specs=specs or (), statuses=statuses or (), labels=labels or ())
    if as_json:
        show.as_json([run.to_json() for run in listed])
    else:
        show.stored_runs(listed, has_experiments=bool(specs))


@runs_app.command("show")
@guarded
def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As in [b]pe:none:1[/b], or a hash.")],
    results: Results = RESULTS,
) -> None:
    """Print the record of one run, as JSON."""
    from ablate import api
    from ablate.cli import show

    show.as_json(api.show_run(run, results=results))


@runs_app.command("remove")
@guarded
def remove_runs(
    labels: Annotated[list[str], typer.Argument(metavar="RUN", help="As `list` takes them.")],
    results: Results = RESULTS,
    is_confirmed: Yes = False,
) -> None:
    """Remove runs with all their files; those at work stay."""
    from ablate import api

    removed = api.remove(results, labels, is_trial=not is_confirmed)
    _print_removed(removed, is_confirmed=is_confirmed)


@runs_app.command("gc")
@guarded
def collect_garbage(
    specs: Annotated[
        list[Path], typer.Argument(metavar="SPEC", help="The experiments whose runs are kept.")
    ],
    results: Results = RESULTS,
    is_confirmed: Yes = False,
) -> None:
    """Remove the runs that none of the experiments needs.

    Example: ablate runs gc experiments/*.yaml
    """
    from ablate import api

    removed = api.collect_garbage(results, specs, is_trial=not is_confirmed)
    _print_removed(removed, is_confirmed=is_confirmed)


@runs_app.command("archive")
@guarded
def archive_runs(
    specs: Annotated[
        list[Path], typer.Argument(metavar="SPEC", help="The experiments whose runs it holds.")
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="As in [b]pe.tar.xz[/b].")
    ],
    content: Annotated[
        str,
        typer.Option(
            metavar="records|curves|translations|weights",
            help="How much of each run: this, and what stands before it in the list; intervals for "
            "new sentences take [b]translations[/b].",
        ),
    ] = "translations",
    results: Results = RESULTS,
) -> None:
    """Write the runs of experiments into one file, to keep or to publish beside their tables.

    Example: ablate runs archive experiments/pe.yaml --output pe.tar.xz
    """
    from ablate import api

    archived = api.archive(specs, output, results=results, content=content)
    kib = output.stat().st_size / 2**10
    size = f"{kib:,.1f} KiB" if kib < 2**10 else f"{kib / 2**10:,.1f} MiB"
    echo(f"{counted(len(archived), 'run')}, {size}: {output}")


@runs_app.command("restore")
@guarded
def restore_runs(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="What `archive` has written.")
    ],
    results: Results = RESULTS,
) -> None:
    """Put the runs of archives into the folder of results, where they count as done.

    Runs that are there stay as they are.
    """
    from ablate import api

    restored = [api.restore(file, results=results) for file in files]
    notes = [f"{counted(sum(len(each.new) for each in restored), 'run')} restored"]
    if n_present := sum(len(each.present) for each in restored):
        notes.append(f"{n_present} were there")
    if n_other := sum(len(each.other_speeds) for each in restored):
        notes.append(f"{n_other} were there with other speeds, and have both")
    if n_other := sum(len(each.other) for each in restored):
        notes.append(f"{n_other} were there with other numbers, and stay")
    echo("; ".join(notes))


@guarded
def status(results: Results = RESULTS, as_json: AsJson = False) -> None:
    """Say what every `ablate run` on the folder of results is doing, from another terminal."""
    from ablate import api
    from ablate.cli import show

    sessions = api.status(results)
    if as_json:
        show.as_json([session.to_json() for session in sessions])
    else:
        show.sessions(sessions, results)


def _print_removed(runs: Sequence[StoredRun], *, is_confirmed: bool) -> None:
    for run in runs:
        echo(f"{run.run}  {run.label}  {run.status}")
    mib = sum(run.n_bytes for run in runs) / 2**20
    verb = "removed" if is_confirmed else "would be removed"
    hint = "" if is_confirmed or not runs else "; --yes removes them"
    echo(f"{counted(len(runs), 'run')}, {mib:,.1f} MiB, {verb}{hint}")
