"""The training curve of a run: losses, learning rate and gradient norm, in rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ablate.training.step import StepResult
from ablate.writing import write_csv

_N_ROWS = 1000  # about; each of the first 100 steps has a row

Row = dict[str, float | None]


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
    """Rows, each with the mean losses of the steps since the row before.

    Both lists are those of an earlier process, when a run continues, and are added to: the rows,
    and the losses and tokens of each step since the last row.
    """

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
        """Return the value of the last row in a column that is never empty."""
        value = self.rows[-1][column]
        assert value is not None, f"every row has a {column}"
        return value

    def write(self, folder: Path) -> None:
        """Write ``curve.csv`` whole or not at all."""
        write_csv(folder / "curve.csv", self.rows)


def has_row(step: int, n_steps: int) -> bool:
    """Return whether the curve has a row for a step, also without an evaluation."""
    return step <= 100 or step % max(1, n_steps // _N_ROWS) == 0
