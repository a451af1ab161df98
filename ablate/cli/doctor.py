"""``ablate doctor``; cheap to import, like every command."""

from __future__ import annotations

from ablate.cli.guard import guarded
from ablate.cli.options import RESULTS, AsJson, Device, Results


@guarded
def doctor(device: Device = "auto", results: Results = RESULTS, as_json: AsJson = False) -> int:
    """Check whether this machine is fit; takes about a minute. Exit 1 if something is broken.

    Examples:
      ablate doctor

      ablate doctor --device cuda:0 --json
    """
    from ablate import api
    from ablate.cli import show

    with show.waiting("examining this machine, which takes about a minute"):
        diagnosis = api.doctor(device=device, results=results)
    if as_json:
        show.as_json(diagnosis.to_json())
    else:
        show.diagnosis(diagnosis)
    return diagnosis.exit_status
