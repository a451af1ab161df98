"""``ablate run``."""

from __future__ import annotations

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import print_table


@guarded
def run(  # noqa: PLR0913 - one argument for every option of the command
    context: typer.Context,
    spec: options.Spec,
    seeds: options.Seeds = None,
    until_decided: options.UntilDecided = None,
    only: options.Only = None,
    overrides: options.Overrides = None,
    fresh: options.Fresh = False,
    results: options.Results = options.RESULTS,
    no_figures: options.NoFigures = False,
    notes: options.Notes = False,
    as_json: options.AsJson = False,
    progress: options.ProgressForm = "auto",
    log: options.Log = None,
    plugins: options.Plugins = None,
    device: options.Device = "auto",
    jobs: options.Jobs = None,
    engine: options.Engine = "auto",
    backend: options.Backend = "local",
    stall_after: options.StallAfter = None,
    probe_seconds: options.ProbeSeconds = None,
    no_probe: options.NoProbe = False,
    address: options.Address = None,
    slurm_partition: options.SlurmPartition = None,
    slurm_time: options.SlurmTime = None,
    gpus_per_task: options.GpusPerTask = None,
    slurm: options.Slurm = None,
    detach: options.Detach = False,
) -> int:
    """Train and measure what is missing, then print the table.

    Finished runs are not repeated. Interrupted runs continue.

    Examples:
      ablate run experiments/pe.yaml

      ablate run experiments/pe.yaml --only baseline --only none --seeds 1 --set training.steps=200
    """
    from ablate import api

    outcome = api.run(spec, options.run_options(context), only=only or ())
    print_table(outcome.table, "json" if as_json else None, has_all_notes=notes)
    return outcome.exit_status
