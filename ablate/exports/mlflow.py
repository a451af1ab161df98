"""MLflow: an SQLite store in one file."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_LOGGING_LEVEL"] = "ERROR"  # it tells of every migration of an empty database

from mlflow.entities import Metric, Param
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking import MlflowClient

from ablate.exports.contract import ExportedRun, Exporter

_NO_ARTIFACTS = "mlflow-artifacts:/"
"""Where artifacts would be, of which there are none; by default a path on this machine."""

_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # in one call
_ID = "ablate.id"


class MLflow(Exporter):
    """Writes ``mlflow.db``: an experiment with a run for each row and seed.

    The curve's columns are metrics by step, final numbers are ``final/...`` at the last step, and
    the spec is the parameters.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        uri = f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        SqlAlchemyStore(uri, _NO_ARTIFACTS)
        self._client = MlflowClient(tracking_uri=uri)

    def export(self, run: ExportedRun) -> None:
        known = self._client.get_experiment_by_name(run.experiment)
        experiment_id = (
            self._client.create_experiment(run.experiment, _NO_ARTIFACTS)
            if known is None
            else known.experiment_id
        )
        earlier = [
            each.info.run_id
            for each in self._client.search_runs([experiment_id], f"tags.`{_ID}` = '{run.id}'")
        ]
        tags = {_ID: run.id, "ablate.hash": run.hash, "ablate.status": run.status}
        started = int(1000 * run.started)
        created = self._client.create_run(experiment_id, started, tags, f"{run.row}/{run.seed}")
        run_id = created.info.run_id
        parameters = [Param(name, str(value)) for name, value in run.parameters.items()]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            some = parameters[first : first + _MOST_PARAMETERS]
            self._client.log_batch(run_id, params=some)
        metrics = [
            Metric(name, value, int(1000 * (run.started + point.seconds)), point.step)
            for point in run.curve
            for name, value in point.values.items()
        ]
        now = int(1000 * (run.started + run.curve[-1].seconds)) if run.curve else started
        metrics += [
            Metric(f"final/{name}", value, now, run.last_step) for name, value in run.final.items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(run_id, metrics[first : first + _MOST_METRICS])
        ended = max((metric.timestamp for metric in metrics), default=started)
        self._client.set_terminated(run_id, "FINISHED", ended)
        for old in earlier:
            self._client.delete_run(old)
