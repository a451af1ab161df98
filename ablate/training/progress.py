"""What is known of a training: how far it is, and in the end what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    step: int
    n_steps: int
    loss: float  # of the objective, per target token, lately
    dev_nll: float | None  # at the last evaluation, in nats per token
    tokens_per_second: float  # target tokens, over this process' share of the run
    seconds_left: float  # at that pace


@dataclass(frozen=True)
class TrainingResult:
    """What training did, for the record; the model holds the averaged weights."""

    steps: int
    epochs: int  # seen to the end
    batches_per_epoch: int  # where epochs differ, of the first with seed 0
    target_tokens: int  # padding not counted
    seconds: float  # in the loop, evaluation included, over all processes of the run
    final_loss: float  # of the objective, per target token, over the last row of the curve
    final_aux_loss: float  # likewise, what parts of the model added to it
    best_dev_nll: float  # in nats per token
    averaged_steps: list[int]
    stopped_early: bool
    engine: str  # in this process
    engine_note: str  # why not the one that was asked for; empty if it was
    engine_seconds: float  # for captures, compilation and the self-check, in this process
    micro_batches: int  # into how many parts batches were divided to fit into memory, at most
    made_by: dict[str, Any]  # the code and the libraries that began the run
