"""The gradient and the update of every layer at a few steps of training.

They are read only: neither weights nor random draws depend on whether a step is recorded.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from ablate.training.engines import Engine
from ablate.writing import write_csv

FILE = "layers.csv"

Row = dict[str, str | int | float]

_NORMS = ("gradient_norm", "update_ratio")
_GROWTH = 1.2  # of a recorded step over the one before: as many for 10 steps as for the next 90
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.")


def is_recorded(step: int) -> bool:
    """Return whether a step is recorded: every one at first, then ever fewer, whatever follows."""
    return round(_GROWTH ** round(math.log(step, _GROWTH))) == step


class LayerRecorder:
    """Rows with the norm of each layer's gradient and how far an update moves its weights.

    New rows are added to ``rows``, which are those of an earlier process when a run continues.
    """

    def __init__(self, engine: Engine, rows: list[Row]) -> None:
        self._engine, self._rows = engine, rows
        self._layers: dict[str, list[nn.Parameter]] = {}
        for name, weight in engine.weights.named_parameters():
            self._layers.setdefault(layer_of(name), []).append(weight)
        self._before: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def before_step(self, step: int) -> None:
        """Ask the engine for the gradients of a step, if it is to be recorded."""
        self._engine.before_update = self._note if is_recorded(step) else None

    def after_step(self, step: int) -> None:
        """Add the rows of a step that was asked for."""
        norm = self._engine.weights.norm
        for layer, (gradient, before) in self._before.items():
            both = zip(self._layers[layer], before, strict=True)
            moved = norm([now.detach() - old.to(now.device) for now, old in both])
            ratio = moved / norm(before).to(moved.device)
            norms = dict(zip(_NORMS, torch.stack((gradient, ratio)).tolist(), strict=True))
            row: Row = {"step": step, "layer": layer}
            self._rows.append(row | norms)
        self._before.clear()

    def write(self, folder: Path) -> None:
        """Write ``layers.csv`` whole or not at all."""
        write_csv(folder / FILE, self._rows)

    def _note(self) -> None:
        """Note the gradients before clipping, and the weights; copies are on the host."""
        for layer, weights in self._layers.items():
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            if gradients:
                copies = [weight.detach().to("cpu", copy=True) for weight in weights]
                self._before[layer] = self._engine.weights.norm(gradients), copies


def layer_of(name: str) -> str:
    """Return the layer of a weight: ``encoder 1``, or the module that it is of."""
    match = _LAYER.match(name)
    return f"{match[1]} {int(match[2]) + 1}" if match else name.partition(".")[0]
