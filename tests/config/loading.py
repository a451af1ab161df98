"""Load experiments from their texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import config
from ablate.config import Experiment, RunSpec


def load(folder: Path, text: str, *overrides: str) -> Experiment:
    """Write ``x.yaml`` into a folder, and load it."""
    path = folder / "x.yaml"
    path.write_text(text)
    return config.load(path, overrides)


def names(experiment: Experiment) -> list[str]:
    return [row.name for row in experiment.rows]


class Folder:
    """A folder for files of experiments."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, text: str, *overrides: str) -> Experiment:
        return load(self.path, text, *overrides)

    def baseline(self, text: str, *overrides: str) -> RunSpec:
        return self.load(text, *overrides).rows[0].spec

    def reasons(self, text: str, *overrides: str) -> list[str]:
        with pytest.raises(config.MistakesError) as caught:
            self.load(text, *overrides)
        return [mistake.reason for mistake in caught.value.mistakes]
