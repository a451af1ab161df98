"""``ablate run``."""

from __future__ import annotations

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import print_table


@guarded
def run(  # noqa: PLR0913 - one argument for every option of the command
    spec: options.Spec,
    seeds: options.Seeds = None,
    only: options.Only = None,
    overrides: options.Overrides = None,
    fresh: options.Fresh = False,
    results: options.Results = options.RESULTS,
    no_figures: options.NoFigures = False,
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

      ablate run experiments/pe.yaml --only none --seeds 1 --set training.steps=200
    """
    from ablate import api

    options.load_plugins(plugins)
    run_options = api.RunOptions(
        seeds=options.parse_seeds(seeds),
        overrides=overrides or (),
        device=device,
        jobs=jobs,
        engine=engine,
        results=results,
        fresh=fresh,
        probe_seconds=probe_seconds,
        probes=not no_probe,
        figures=not no_figures,
        stall_after=stall_after,
        log=log or (),
        backend=backend,
        backend_options=options.backend_options(
            slurm,
            detach=detach,
            address=address,
            slurm_partition=slurm_partition,
            slurm_time=slurm_time,
            gpus_per_task=gpus_per_task,
        ),
    )
    outcome = api.run(spec, run_options, only=only or ())
    print_table(outcome.table)
    return outcome.exit_status
