"""``ablate schema``."""

from __future__ import annotations

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import echo_json


@guarded
def schema(plugins: options.Plugins = None) -> None:
    """Print the JSON Schema of an experiment, for editors.

    Example: ablate schema > experiment.schema.json
    """
    from ablate import api

    echo_json(api.schema())
