"""``ablate runs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import options
from ablate.cli.completion import run_names
from ablate.cli.guard import Command, guarded
from ablate.cli.output import console_of_output, echo, echo_json, print_rows, waiting
from ablate.wording import counted

if TYPE_CHECKING:
    from ablate.api import StoredRun

runs_app = typer.Typer(help="List, show, remove and archive the runs in the folder of results.")

_KEPT = {
    "present": "were there",
    "other_speeds": "were there with other speeds, and have both",
    "other": "were there with other numbers, and stay",
    "at_work": "at work, and kept",
}
"""Runs of an archive that were not restored, by the field of `Restored`."""
Yes = Annotated[bool, typer.Option("--yes", help="Remove the runs, do not only list them.")]


@runs_app.command("list", cls=Command)
@guarded
def list_runs(
    labels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="As in [b]pe[/b], [b]pe:none[/b] or [b]pe:none:1[/b], or the first characters of "
            "a run's hash.",
        ),
    ] = None,
    statuses: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="List only runs with this status: done, diverged, failed, oom, unfinished, "
            "unreadable or link. Repeatable.",
        ),
    ] = None,
    specs: Annotated[
        list[Path] | None,
        typer.Option(
            "--experiment",
            metavar="SPEC",
            help="Show which runs this experiment needs. Repeatable.",
        ),
    ] = None,
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
) -> None:
    """List stored runs with status, BLEU and size.

    Examples:
      ablate runs list --status failed --status oom

      ablate runs list pe --experiment experiments/pe.yaml
    """
    from rich.table import Table

    from ablate import api

    if not results.is_dir():
        echo(f"there is no folder {results}", err=True)
    with waiting("reading runs"):
        listed = api.runs(results, specs=specs or (), statuses=statuses or (), labels=labels or ())
    if as_json:
        echo_json([run.to_json() for run in listed])
        return
    folded, whole = {"overflow": "fold"}, {"no_wrap": True}  # a hash is to be copied
    right = {**whole, "justify": "right"}
    columns: dict[str, tuple[dict[str, Any], Callable[[StoredRun], str]]] = {
        "hash": (whole, lambda run: run.run),
        "experiment": (folded, lambda run: run.experiment or ""),
        "row": (folded, lambda run: run.row or ""),
        "seed": (right, lambda run: "" if run.seed is None else str(run.seed)),
        "status": (whole, lambda run: "at work" if run.is_at_work else run.status),
        "BLEU": (right, lambda run: "" if run.bleu is None else f"{run.bleu:.2f}"),
        "MiB": (right, lambda run: f"{run.n_bytes / 2**20:,.1f}"),
        "finished": (whole, lambda run: (run.finished or "")[:16].replace("T", " ")),
    }
    if specs:
        columns["needed by"] = {}, lambda run: ", ".join(run.experiments)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header, (style, _) in columns.items():
        grid.add_column(header, **style)
    rows = [[text(run) for _, text in columns.values()] for run in listed]
    print_rows(console_of_output(), grid, rows)
    echo(f"{counted(len(listed), 'run')}, {_mib(listed)}")


@runs_app.command("show", cls=Command)
@guarded
def show_run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="As in [b]pe:none:1[/b], or a hash.", autocompletion=run_names
        ),
    ],
    results: options.Results = options.RESULTS,
) -> None:
    """Print the record of one run, as JSON."""
    from ablate import api

    echo_json(api.show_run(run, results=results))


@runs_app.command("remove", cls=Command)
@guarded
def remove_runs(
    labels: Annotated[list[str], typer.Argument(metavar="RUN", help="Runs as for `list`.")],
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
    is_confirmed: Yes = False,
) -> None:
    """Remove runs with all their files. Running runs are kept."""
    from ablate import api

    with waiting("removing runs"):
        removed = api.remove(results, labels, is_trial=not is_confirmed)
    _print_removed(removed, is_confirmed=is_confirmed, as_json=as_json)


@runs_app.command("gc", cls=Command)
@guarded
def collect_garbage(
    specs: Annotated[
        list[Path], typer.Argument(metavar="SPEC", help="The experiments whose runs are kept.")
    ],
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
    is_confirmed: Yes = False,
) -> None:
    """Remove the runs that none of the experiments needs.

    Example: ablate runs gc experiments/*.yaml
    """
    from ablate import api

    with waiting("reading and removing runs"):
        removed = api.collect_garbage(results, specs, is_trial=not is_confirmed)
    _print_removed(removed, is_confirmed=is_confirmed, as_json=as_json)


@runs_app.command("archive", cls=Command)
@guarded
def archive_runs(
    specs: Annotated[
        list[Path], typer.Argument(metavar="SPEC", help="The experiments whose runs to archive.")
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="The archive, as in [b]pe.tar.xz[/b].")
    ],
    content: Annotated[
        str,
        typer.Option(
            metavar="records|curves|translations|weights",
            help="What to keep of each run: this, and what precedes it in the list. Intervals over "
            "test sentences need [b]translations[/b].",
        ),
    ] = "translations",
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
) -> None:
    """Write the runs of experiments into one file, to keep or to publish.

    Example: ablate runs archive experiments/pe.yaml --output pe.tar.xz
    """
    from ablate import api

    with waiting("packing runs"):
        archived = api.archive(specs, output, results=results, content=content)
    if as_json:
        echo_json({"output": str(output), "runs": [run.to_json() for run in archived]})
        return
    kib = output.stat().st_size / 2**10
    size = f"{kib:,.1f} KiB" if kib < 2**10 else f"{kib / 2**10:,.1f} MiB"
    echo(f"{counted(len(archived), 'run')}, {size}: {output}")


@runs_app.command("restore", cls=Command)
@guarded
def restore_runs(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Archives that `archive` has written.")
    ],
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
) -> None:
    """Put the runs of archives into the folder of results, so that they count as done.

    Runs that are in the folder already are kept.
    """
    from ablate import api

    with waiting("unpacking runs"):
        restored = [api.restore(file, results=results) for file in files]
    if as_json:
        echo_json({"archives": [asdict(each) for each in restored]})
        return
    n_new = sum(len(each.new) for each in restored)
    counts = {text: sum(len(getattr(each, f)) for each in restored) for f, text in _KEPT.items()}
    kept = [f"; {n} {text}" for text, n in counts.items() if n]
    echo(f"{counted(n_new, 'run')} restored{''.join(kept)}")


def _mib(runs: Sequence[StoredRun]) -> str:
    return f"{sum(run.n_bytes for run in runs) / 2**20:,.1f} MiB"


def _print_removed(runs: Sequence[StoredRun], *, is_confirmed: bool, as_json: bool) -> None:
    if as_json:
        echo_json({"runs": [run.to_json() for run in runs], "is_removed": is_confirmed})
        return
    for run in runs:
        echo(f"{run.run}  {run.label}  {run.status}")
    verb = "removed" if is_confirmed else "would be removed"
    hint = "" if is_confirmed or not runs else "; --yes removes them"
    echo(f"{counted(len(runs), 'run')}, {_mib(runs)}, {verb}{hint}")
