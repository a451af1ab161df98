"""The contract of an exporter, what it is given of a run, and the list of all."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ablate.hashing import sha256_of_text
from ablate.record import leaves, numbers

EXPORTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tensorboard": ("TensorBoard", ("tensorboard",)),
    "mlflow": ("MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ("WeightsAndBiases", ("wandb",)),
}
"""Of each tracker, the class in the module with its name, and the packages that it needs."""

NAMES = tuple(EXPORTERS)

_FINAL = ("params", "flops", "train", "speed", "memory", "dev", "test")
_PER_ROUND_OR_PART = {"rounds", "earlier", "by_part"}
Parameter = str | int | float | bool


@dataclass(frozen=True)
class CurvePoint:
    """One row of a run's curve: a step, seconds since the start, and the values that are given."""

    step: int
    seconds: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class ExportedRun:
    """A run as trackers get it."""

    experiment: str  # of runs under overrides, that of the trial
    row: str
    seed: int
    hash: str
    status: str  # done or diverged
    started: float  # in seconds since 1970
    parameters: Mapping[str, Parameter]  # the spec by path, `model.position.name`; lists as JSON
    curve: tuple[CurvePoint, ...]
    final: Mapping[str, float]  # the numbers of the record by path, `test.test.bleu`

    @property
    def name(self) -> str:
        """Return experiment, row and seed."""
        return f"{self.experiment}/{self.row}/{self.seed}"

    @property
    def row_folder(self) -> str:
        """Return the row as the name of a folder that no other row has."""
        if self.row in (".", ".."):
            return self.row.replace(".", "%2E")
        return self.row.replace("%", "%25").replace("/", "%2F")

    @property
    def id(self) -> str:
        """Return 16 hex digits for the name, which tell the run's own from other exports."""
        return sha256_of_text(self.name)[:16]

    @property
    def last_step(self) -> int:
        """Return the last step of the curve; 0 without one."""
        return self.curve[-1].step if self.curve else 0


class Exporter(ABC):
    """Writes runs for one tracker into a folder, which exists, without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def export(self, run: ExportedRun) -> None:
        """Write a run, in place of what was written of the run with its name before."""

    def close(self) -> None:
        """Give back what was taken; nothing unless overridden."""
        return


def exported_run(
    experiment: str, row: str, record: Mapping[str, Any], curve_file: Path
) -> ExportedRun:
    """Return what trackers get of a run, under these names; there may be no ``curve_file``."""
    final = {
        path: value
        for path, value in numbers({key: record.get(key) for key in _FINAL})
        if _PER_ROUND_OR_PART.isdisjoint(path.split("."))
    }
    parameters = {
        path: value if isinstance(value, str | int | float | bool) else json.dumps(value)
        for path, value in leaves(record.get("spec", {}))
    }
    curve: list[CurvePoint] = []
    if curve_file.is_file():
        with curve_file.open(encoding="utf-8", newline="") as stream:
            for cells in csv.DictReader(stream):
                values = {name: float(text) for name, text in cells.items() if text}
                step = int(values.pop("step"))
                curve.append(CurvePoint(step, values.pop("seconds", 0.0), values))
    started = datetime.fromisoformat(record["started"]).timestamp() if "started" in record else 0.0
    run = record["seed"], record["hash"], record["status"]
    return ExportedRun(experiment, row, *run, started, parameters, tuple(curve), final)
