"""What trackers runs can be exported to; imports nothing of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ExporterEntry:
    """An exporter that is not imported yet; the extra that installs it has the tracker's name.

    Attributes:
        class_name: in the module of this package that has the tracker's name.
        packages: that must be installed for it.
    """

    class_name: str
    packages: tuple[str, ...]


EXPORTERS: Mapping[str, ExporterEntry] = {
    "tensorboard": ExporterEntry("TensorBoard", ("tensorboard",)),
    "mlflow": ExporterEntry("MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ExporterEntry("WeightsAndBiases", ("wandb",)),
}

NAMES = tuple(EXPORTERS)
