"""``ablate plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import console_of_output, echo_documents, print_rows, waiting
from ablate.wording import format_duration, rounded

if TYPE_CHECKING:
    from ablate.api import Plan

_MIN_WIDTH_FOR_CHANGES = 110
"""Columns of a terminal in which changes have a column; else they stand below the row's name."""


@guarded
def plan(  # noqa: PLR0913 - one argument for every option of the command
    context: typer.Context,
    spec: options.Spec,
    seeds: options.Seeds = None,
    until_decided: options.UntilDecided = None,
    only: options.Only = None,
    overrides: options.Overrides = None,
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
    plugins: options.Plugins = None,
    device: options.Device = "auto",
    jobs: options.Jobs = None,
    engine: options.Engine = "auto",
    backend: options.Backend = "local",
    address: options.Address = None,
    slurm_partition: options.SlurmPartition = None,
    slurm_time: options.SlurmTime = None,
    gpus_per_task: options.GpusPerTask = None,
    slurm: options.Slurm = None,
) -> None:
    """Show what `run` would do: rows, sizes, costs, finished runs. Nothing is trained.

    Example: ablate plan experiments/heads.yaml
    """
    from ablate import api

    given = options.overrides_of(context.params)
    with waiting("checking and counting every row"):
        plans = {
            name: api.plan(
                path,
                seeds=options.parse_seeds(seeds),
                only=only or (),
                device=device,
                jobs=jobs,
                engine=engine,
                overrides=given,
                results=results,
                backend=backend,
                backend_options=options.backend_options(context.params),
            )
            for name, path in (api.contexts_of(spec, given) or {"": spec}).items()
        }
    if as_json:
        echo_documents({name: planned.to_json() for name, planned in plans.items()})
    else:
        for planned in plans.values():
            print_plan(planned)


def print_plan(planned: Plan) -> None:
    """Print the rows of a plan and the remarks below them."""
    from rich.table import Table
    from rich.text import Text

    from ablate.report.values import format_value

    console = console_of_output()
    is_narrow = console.width < _MIN_WIDTH_FOR_CHANGES
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("row",) if is_narrow else ("row", "change"):
        grid.add_column(header, overflow="fold")
    is_published = any("params" in row.published for row in planned.rows)
    sizes = ["published"] if is_published else []
    for header in ("parameters", *sizes, "MFLOPs/token", "peak MiB", "a run", "done"):
        grid.add_column(header, justify="right", no_wrap=True)
    rows = []
    for row in planned.rows:
        chosen = {path: f" ({how})" for path, how in row.chosen.items()}
        changes = [
            f"{path}={'?' if path in row.pending else format_value(value) + chosen.get(path, '')}"
            for path, value in row.changes.items()
        ]
        names = ["\n  ".join([row.name, *changes])] if is_narrow else [row.name, ", ".join(changes)]
        delta = f" ({row.params_delta:+.1%})" if row.params_delta else ""
        approximately = "" if row.is_vocabulary_known else "~"
        published, memory = row.published.get("params"), row.train_peak_mib
        seconds, is_guess = row.seconds_per_run, "~" * row.is_time_estimated
        rows.append(
            [
                *names,
                f"{approximately}{row.params:,}{delta}",
                *([f"{published / 1e6:,.4g} M" if published else ""] if is_published else []),
                f"{approximately}{rounded(row.flops_per_target_token / 1e6, 3)}",
                "?" if memory is None else f"{memory:,.0f}",
                "?" if seconds is None else f"{is_guess}{format_duration(seconds)}",
                f"{row.n_done} of {len(row.runs)}",
            ]
        )
    console.print(Text(f"{planned.experiment}  {planned.question or ''}".rstrip(), style="bold"))
    print_rows(console, grid, rows)
    for line in planned.remarks():
        console.print(Text(line))
