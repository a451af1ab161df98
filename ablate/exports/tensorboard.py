"""TensorBoard: one folder of event files for each run."""

from __future__ import annotations

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ablate.exports.contract import ExportedRun, Exporter
from ablate.writing import remove_tree


class TensorBoard(Exporter):
    """Writes ``<experiment>/<row>/<seed>/events.out.tfevents.ablate``; a row's slash is %2F.

    The curve's columns are scalars by step, final numbers are ``final/...`` at the last step, and
    the spec is a set of hyperparameters.
    """

    def export(self, run: ExportedRun) -> None:
        folder = self.folder / run.experiment / run.row_folder / str(run.seed)
        remove_tree(folder, ignore_errors=True)
        with SummaryWriter(str(folder)) as writer:
            final = {f"final/{name}": value for name, value in run.final.items()}
            for summary in hparams(dict(run.parameters), final):
                writer.file_writer.add_summary(summary, walltime=run.started)
            for point in run.curve:
                for name, value in point.values.items():
                    writer.add_scalar(name, value, point.step, run.started + point.seconds)
            ended = run.started + (run.curve[-1].seconds if run.curve else 0.0)
            for name, value in final.items():
                writer.add_scalar(name, value, run.last_step, ended)
        (events,) = folder.glob("events.*")  # NFS may keep a file that TensorBoard has open
        events.rename(folder / "events.out.tfevents.ablate")  # it was named after the host
