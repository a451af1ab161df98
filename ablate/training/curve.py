"""What a run writes while it trains: its curve, and the gradient and update of every layer."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ablate.training.engines import Engine
from ablate.training.step import StepResult
from ablate.writing import write_csv

_N_ROWS = 1000  # about; each of the first 100 steps has a row

Row = dict[str, float | None]
LayerRow = dict[str, str | int | float]


@dataclass(frozen=True)
class UnreadStep:
    """A step whose numbers have not been read from the device."""

    number: int
    result: StepResult
    target_tokens: int  # of all steps so far
    rate: float
    seconds: float  # of the run so far
    has_row: bool  # whether the curve has a row for it without an evaluation


class Curve:
    """Rows, each with the mean losses of the steps since the row before."""

    def __init__(self, rows: list[Row], since_row: list[list[float]]) -> None:
        self.rows = rows
        self.dev_nlls = [x for row in rows if (x := row["dev_nll"]) is not None]  # nats per token
        self._since_row = since_row
        self._gradient_norm = float("nan")

    def add_step(self, step: UnreadStep, loss: float, aux_loss: float, norm: float) -> None:
        """Count a step, in order, with the numbers of its result."""
        self._since_row.append([loss, aux_loss, step.result.n_tokens])
        self._gradient_norm = norm

    def add_row(self, step: UnreadStep, seconds: float, dev_nll: float | None = None) -> None:
        """Add a row for the last step that was counted."""
        n_tokens = sum(n for *_, n in self._since_row)
        self.rows.append(
            {
                "step": step.number,
                "tokens": step.target_tokens,
                "train_loss": sum(loss * n for loss, _, n in self._since_row) / n_tokens,
                "own_loss": sum(aux * n for _, aux, n in self._since_row) / n_tokens,
                "dev_nll": dev_nll,
                "learning_rate": step.rate,
                "gradient_norm": self._gradient_norm,
                "seconds": round(seconds, 3),
            }
        )
        if dev_nll is not None:
            self.dev_nlls.append(dev_nll)
        self._since_row.clear()

    def last(self, column: str) -> float:
        value = self.rows[-1][column]
        assert value is not None, f"every row has a {column}"
        return value

    def write(self, folder: Path) -> None:
        """Write ``curve.csv`` whole or not at all."""
        write_csv(folder / "curve.csv", self.rows)


def has_row(step: int, n_steps: int) -> bool:
    """Return whether the curve has a row for a step, also without an evaluation."""
    return step <= 100 or step % max(1, n_steps // _N_ROWS) == 0


_NORMS = ("gradient_norm", "update_ratio")
_GROWTH = 1.2  # of a recorded step over the one before: as many for 10 steps as for the next 90
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.")


def is_recorded(step: int) -> bool:
    """Return whether a step is recorded: every one at first, then ever fewer, whatever follows."""
    return round(_GROWTH ** round(math.log(step, _GROWTH))) == step


class LayerRecorder:
    """Rows with the norm of each layer's gradient and how far an update moves its weights.

    They are read only: neither weights nor random draws depend on it. New rows are added to
    ``rows``, which are those of an earlier process when a run continues.
    """

    def __init__(self, engine: Engine, rows: list[LayerRow]) -> None:
        self._engine, self._rows = engine, rows
        self._layers: dict[str, list[nn.Parameter]] = {}
        for name, weight in engine.weights.named_parameters():
            self._layers.setdefault(layer_of(name), []).append(weight)
        self._before: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def before_step(self, step: int) -> None:
        self._engine.before_update = self._note if is_recorded(step) else None

    def after_step(self, step: int) -> None:
        norm = self._engine.weights.norm
        for layer, (gradient, before) in self._before.items():
            both = zip(self._layers[layer], before, strict=True)
            moved = norm([now.detach() - old.to(now.device) for now, old in both])
            ratio = moved / norm(before).to(moved.device)
            norms = dict(zip(_NORMS, torch.stack((gradient, ratio)).tolist(), strict=True))
            self._rows.append({"step": step, "layer": layer, **norms})
        self._before.clear()

    def write(self, folder: Path) -> None:
        """Write ``layers.csv`` whole or not at all."""
        write_csv(folder / "layers.csv", self._rows)

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
