"""What trackers runs can be exported to; imports nothing of theirs."""

from __future__ import annotations

from collections.abc import Mapping

EXPORTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tensorboard": ("TensorBoard", ("tensorboard",)),
    "mlflow": ("MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ("WeightsAndBiases", ("wandb",)),
}
"""Of each tracker, the class in the module with its name, and the packages that it needs."""

NAMES = tuple(EXPORTERS)
