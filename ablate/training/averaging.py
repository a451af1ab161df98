"""Averages of the weights: of the last or the best snapshots, or of all steps.

Source: Polyak & Juditsky 1992; for the Transformer Vaswani et al. 2017, sec. 6.1, average the last
5 (base) or 20 (big) snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ablate.config.experiment import Average
from ablate.errors import RunError
from ablate.hashing import sha256, sha256_of_file
from ablate.parts.optimizer import Averaging
from ablate.writing import atomic_write


class Snapshot(TypedDict):
    """One snapshot: its step, its dev NLL per token, and the hash of its file."""

    step: int
    dev_nll: float
    sha256: str


class Snapshots:
    """The snapshots that the average will need, as files ``<folder>/<step>.safetensors``."""

    def __init__(self, folder: Path, average: Average, entries: Iterable[Snapshot] = ()) -> None:
        self.folder = folder
        self.average = average
        self.entries = list(entries)

    def add(self, model: nn.Module, step: int, dev_nll: float, n_left: int = 0) -> None:
        """Save a snapshot if it may be one of those to keep; at least ``n_left`` will follow."""
        if self.average.best is None and n_left >= (self.average.last or 1):
            return
        entry: Snapshot = {"step": step, "dev_nll": dev_nll, "sha256": ""}
        self.entries.append(entry)
        if self.average.best is not None:
            self.entries.sort(key=lambda snapshot: (snapshot["dev_nll"], snapshot["step"]))
            del self.entries[self.average.best :]
        else:
            del self.entries[: -(self.average.last or 1)]
        if entry in self.entries:
            # Copies: safetensors refuses memory that several names share
            weights = {name: w.to("cpu", copy=True) for name, w in model.state_dict().items()}
            content = save({name: w.contiguous() for name, w in weights.items()})
            with atomic_write(self._file(step)) as stream:
                stream.write(content)
            entry["sha256"] = sha256([content])

    def are_intact(self) -> bool:
        """Return whether all files have the content that was written."""
        # One of early code has no hash
        files = [(self._file(entry["step"]), entry.get("sha256")) for entry in self.entries]
        return all(file.exists() and sha256_of_file(file) == written for file, written in files)

    def prune(self) -> None:
        """Delete the files that are no longer needed; to be called when the list is on disk."""
        files = {self._file(snapshot["step"]) for snapshot in self.entries}
        for file in self.folder.glob("*.safetensors"):
            if file not in files:
                file.unlink()

    def mean(self) -> dict[str, Tensor]:
        """Return the average, summed in double precision; a damaged file is a `RunError`."""
        if not self.are_intact():
            raise RunError(f"a snapshot in {self.folder} is damaged; the next call begins anew")
        files = [load_file(self._file(step)) for step in self.steps]
        return {
            name: torch.stack([file[name].double() for file in files]).mean(dim=0).to(first.dtype)
            for name, first in files[0].items()
        }

    @property
    def steps(self) -> list[int]:
        return sorted(snapshot["step"] for snapshot in self.entries)

    def _file(self, step: int) -> Path:
        return self.folder / f"{step}.safetensors"


class MovingAverage:
    """The exponential moving average of the weights after every step, with bias correction.

    After n steps the weights of step i have a share proportional to decay^(n - i), and the shares
    add up to 1, as in Adam (Kingma & Ba 2015, sec. 3). ``state`` is that of an earlier process.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        decay: float,
        state: dict[str, Tensor] | None = None,
    ) -> None:
        self.decay = decay
        self.total = state or {name: torch.zeros_like(w) for name, w in weights.items()}

    def add(self, weights: Mapping[str, Tensor]) -> None:
        totals = list(self.total.values())
        torch._foreach_lerp_(totals, [weights[name] for name in self.total], 1 - self.decay)

    def mean(self, n_steps: int) -> dict[str, Tensor]:
        """Return the average after ``n_steps`` calls of `add`."""
        return {name: total / (1 - self.decay**n_steps) for name, total in self.total.items()}


@contextmanager
def evaluated_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the model have the weights that its optimizer evaluates, and then its own again."""
    if not isinstance(optimizer, Averaging):
        yield
        return
    with torch.no_grad():
        weights = [(w, w.clone(), average) for w, average in optimizer.averages()]
        for w, _, average in weights:
            w.copy_(average)
    try:
        yield
    finally:
        with torch.no_grad():
            for w, own, _ in weights:
                w.copy_(own)
