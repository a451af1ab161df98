"""One optimizer step: forward, backward, clipping, update.

The loss of a step is per target token, over all the batches that the step accumulates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.parts.objective import Objective


@dataclass(frozen=True)
class StepResult:
    """What one step did; tensors, so that nobody has to wait for the device.

    Attributes:
        loss: of the objective, in nats per target token, ().
        gradient_norm: before clipping, ().
        n_tokens: target tokens, padding not counted.
    """

    loss: Tensor
    gradient_norm: Tensor
    n_tokens: int


def train_step(
    model: Transformer,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    *,
    clip: float | None,
    precision: str,
) -> StepResult:
    """Make one step on ``batches``, which count as one large batch.

    Args:
        model: in training mode, on the device of the batches.
        objective: what to minimise.
        optimizer: with its learning rate set.
        batches: one, or several whose gradients are accumulated.
        clip: largest norm of the whole gradient, or None.
        precision: ``fp32``, or ``bf16`` for autocast with fp32 weights.
    """
    n_tokens = sum(batch.n_tokens for batch in batches)
    optimizer.zero_grad(set_to_none=True)
    losses = []
    for batch in batches:
        loss = batch_loss(model, objective, batch, precision) / n_tokens
        loss.backward()
        losses.append(loss.detach())
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)
    optimizer.step()
    return StepResult(torch.stack(losses).sum(), norm, n_tokens)


def batch_loss(model: Transformer, objective: Objective, batch: Batch, precision: str) -> Tensor:
    """Return the summed loss, (), of one batch."""
    with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(batch.src, batch.tgt_in)
    return objective.loss(logits.flatten(0, 1), batch.tgt_out.flatten())
