"""``ablate doctor``."""

from __future__ import annotations

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import console_of_output, echo_json, waiting
from ablate.wording import counted

_STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red", "not applicable": "dim"}


@guarded
def doctor(
    device: options.Device = "auto",
    results: options.Results = options.RESULTS,
    as_json: options.AsJson = False,
) -> int:
    """Check whether this machine is fit. Takes about a minute. Exit 1 if something is broken.

    Examples:
      ablate doctor

      ablate doctor --device cuda:0 --json
    """
    from rich.table import Table
    from rich.text import Text

    from ablate import api

    with waiting("examining this machine, which takes about a minute"):
        diagnosis = api.doctor(device=device, results=results)
    if as_json:
        echo_json(diagnosis.to_json())
        return diagnosis.exit_status
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("check", no_wrap=True)
    grid.add_column("outcome", no_wrap=True)
    grid.add_column("what was observed")
    devices = {result.device for result in diagnosis.results if result.device}
    for result in diagnosis.results:
        name = f"{result.name} {result.device}".strip() if len(devices) > 1 else result.name
        outcome = Text(result.outcome, style=_STYLES[result.outcome])
        grid.add_row(Text(name), outcome, Text(result.sentence))
    outcomes = [result.outcome for result in diagnosis.results]
    n_broken, n_warnings = outcomes.count("broken"), outcomes.count("warning")
    fit = f"not fit: {n_broken} of {len(outcomes)} checks broken" if n_broken else "fit"
    warnings = f", with {counted(n_warnings, 'warning')}" if n_warnings else ""
    console = console_of_output()
    console.print(grid)
    console.print(Text(f"\nThis machine is {fit}{warnings}.", style="bold"))
    return diagnosis.exit_status
