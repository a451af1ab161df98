"""Weights & Biases: offline runs, which ``wandb sync`` uploads if the user wants that."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["WANDB_ERROR_REPORTING"] = "false"

import wandb

from ablate.exports.contract import ExportedRun, Exporter
from ablate.writing import remove_tree

_SETTINGS = wandb.Settings(
    mode="offline",
    silent=True,
    console="off",
    host="-",
    username="-",
    email="-",
    program="-",
    disable_code=True,
    disable_git=True,
    symlink=False,
    x_disable_machine_info=True,
    x_disable_meta=True,
    x_disable_stats=True,
    x_save_requirements=False,
)
"""Neither a network nor anything of this machine or of its user."""


class WeightsAndBiases(Exporter):
    """Writes ``wandb/offline-run-*/run-<id>.wandb``; the id is that of the name of the run.

    The curve's columns are its history, final numbers its summary, and the spec its config.
    """

    def export(self, run: ExportedRun) -> None:
        earlier = list(self.folder.glob(f"wandb/offline-run-*-{run.id}"))
        wandb_run = wandb.init(
            project=run.experiment.replace("/", "-"),  # a slash is refused
            name=f"{run.row}/{run.seed}",
            id=run.id,
            dir=self.folder,
            config=dict(run.parameters),
            tags=[run.status, run.hash],
            settings=_SETTINGS,
        )
        for point in run.curve:
            wandb_run.log({**point.values, "seconds": point.seconds}, step=point.step)
        wandb_run.summary.update(dict(run.final))
        written = Path(wandb_run.dir).parent
        wandb_run.finish()
        for beside in ("files", "logs", "tmp"):  # with paths of this machine
            remove_tree(written / beside, ignore_errors=True)
        for folder in earlier:
            remove_tree(folder)

    def close(self) -> None:
        wandb.teardown()
