"""Snapshots of the weights, and their average: the last n, or the n with the best dev NLL.

Averaging checkpoints is as old as Polyak & Juditsky 1992; for this model Vaswani et al. 2017,
sec. 6.1, average the last 5 (base) or 20 (big).
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ablate.spec.experiment import Average


class Kept(TypedDict):
    """One snapshot: the step it was taken at, and its dev NLL per token."""

    step: int
    dev_nll: float


class Snapshots:
    """The snapshots that the average will need, as files ``<folder>/<step>.safetensors``.

    Args:
        folder: where they lie.
        average: which to keep.
        kept: those of an earlier process, when a run continues.
    """

    def __init__(self, folder: Path, average: Average, kept: list[Kept] | None = None) -> None:
        self.folder = folder
        self.average = average
        self.kept = list(kept or [])

    def add(self, model: nn.Module, step: int, dev_nll: float) -> None:
        """Take a snapshot, if it is one of those to keep."""
        self.kept.append({"step": step, "dev_nll": dev_nll})
        if self.average.best is not None:
            self.kept.sort(key=lambda kept: (kept["dev_nll"], kept["step"]))
            del self.kept[self.average.best :]
        else:
            del self.kept[: -(self.average.last or 1)]
        if any(kept["step"] == step for kept in self.kept):
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(weights(model), self._file(step))

    def prune(self) -> None:
        """Delete the files that are no longer needed; call once the new list is on disk."""
        wanted = {self._file(kept["step"]) for kept in self.kept}
        for file in self.folder.glob("*.safetensors"):
            if file not in wanted:
                file.unlink()

    def mean(self) -> dict[str, Tensor]:
        """Return the average of the kept weights, summed in double precision."""
        files = [load_file(self._file(step)) for step in self.steps]
        return {
            name: torch.stack([file[name].double() for file in files]).mean(dim=0).to(first.dtype)
            for name, first in files[0].items()
        }

    @property
    def steps(self) -> list[int]:
        """Return the steps of the kept snapshots, in order."""
        return sorted(kept["step"] for kept in self.kept)

    def _file(self, step: int) -> Path:
        return self.folder / f"{step}.safetensors"


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights as safetensors wants them: contiguous, on the CPU."""
    return {name: w.detach().cpu().contiguous() for name, w in model.state_dict().items()}
