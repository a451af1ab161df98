"""What is known of a training: how far it is, and in the end what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        step: optimizer steps done, of n_steps.
        n_steps: optimizer steps in all.
        loss: of the objective, per target token, lately.
        dev_nll: at the last evaluation, in nats per token.
        tokens_per_second: target tokens, over this process' share of the run.
        seconds_left: at that pace.
    """

    step: int
    n_steps: int
    loss: float
    dev_nll: float | None
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class TrainingResult:
    """What training did, for the record; the model holds the averaged weights.

    Attributes:
        steps: optimizer steps.
        epochs: epochs seen to the end.
        batches_per_epoch: of them; where they differ, of the first with seed 0.
        target_tokens: padding not counted.
        seconds: wall time in the loop, evaluation included, over all its processes.
        final_loss: of the objective, per target token, over the last row of the curve.
        final_aux_loss: likewise, what parts of the model added to it.
        best_dev_nll: the lowest of the evaluations, in nats per token.
        averaged_steps: the snapshots that were averaged.
        stopped_early: whether patience ran out before the steps did.
        engine: what the steps were executed with, in this process.
        engine_note: why not with the engine that was asked for; empty if it was.
        engine_seconds: wall time that went into captures, compilation and the self-check, in this
            process.
        micro_batches: into how many parts batches were divided to fit into memory, at most; 1 if
            they were not.
        made_by: the code and the libraries that began the run, as the job describes them.
    """

    steps: int
    epochs: int
    batches_per_epoch: int
    target_tokens: int
    seconds: float
    final_loss: float
    final_aux_loss: float
    best_dev_nll: float
    averaged_steps: list[int]
    stopped_early: bool
    engine: str
    engine_note: str
    engine_seconds: float
    micro_batches: int
    made_by: dict[str, Any]
