"""Load an experiment from its text."""

from __future__ import annotations

from pathlib import Path

from ablate import config


def load(folder: Path, text: str, *overrides: str) -> config.Experiment:
    """Write ``x.yaml`` into a folder, and load it."""
    path = folder / "x.yaml"
    path.write_text(text)
    return config.load(path, overrides)
