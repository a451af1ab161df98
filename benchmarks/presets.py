"""The runs of presets, with changes of their values."""

from __future__ import annotations

from ablate import config
from ablate.config import RunSpec


def preset(name: str, *changes: str) -> RunSpec:
    """Return the run of a preset with its first seed.

    Args:
        name: of a file in experiments/presets.
        *changes: ``PATH=VALUE`` each.

    Raises:
        SpecError: if a change is invalid.
    """
    return config.expand(config.load(f"ablate:presets/{name}", changes))[0].spec
