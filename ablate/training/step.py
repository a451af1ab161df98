"""One optimizer step: forward, backward, clipping, update.

The loss of a step is per target token, over all the batches that the step accumulates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.parts.initialisation import Initialisation
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Group
from ablate.registry import build
from ablate.spec.experiment import TrainingSpec


@dataclass(frozen=True)
class StepResult:
    """What one step did; tensors, so that nobody has to wait for the device.

    Attributes:
        loss: of the objective, in nats per target token, ().
        own_loss: what parts of the model added to it, such as the balance loss of a mixture of
            experts, ().
        gradient_norm: before clipping, ().
        n_tokens: target tokens, padding not counted.
    """

    loss: Tensor
    own_loss: Tensor
    gradient_norm: Tensor
    n_tokens: int


@dataclass(frozen=True)
class Recipe:
    """How a step is made.

    Attributes:
        objective: what to minimise.
        clip: largest norm of the whole gradient, or None.
        loss_per: what the summed loss is divided by before its gradient is taken.
        precision: ``fp32``, or ``bf16`` for autocast with fp32 weights.
    """

    objective: Objective
    clip: float | None = None
    loss_per: Literal["token", "sentence"] = "token"
    precision: str = "fp32"

    @classmethod
    def of(cls, training: TrainingSpec, precision: str) -> Recipe:
        """Return what ``training`` asks for."""
        objective = build(Objective, training.objective, PAD, at="training.objective")
        return cls(objective, training.clip, training.loss_per, precision)


def train_step(
    model: Transformer,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
) -> StepResult:
    """Make one step on ``batches``, which count as one large batch.

    Args:
        model: in training mode, on the device of the batches.
        recipe: how.
        optimizer: with its learning rate set.
        batches: one, or several whose gradients are accumulated.
    """
    per_token = recipe.loss_per == "token"
    n_tokens = sum(batch.n_tokens for batch in batches)
    n_units = n_tokens if per_token else sum(batch.src.size(0) for batch in batches)
    optimizer.zero_grad(set_to_none=True)
    sums = []
    for batch in batches:
        both = batch_losses(model, recipe, batch)  # (2,)
        (both.sum() / n_units).backward()
        sums.append(both.detach())
    norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip or math.inf)
    optimizer.step()
    loss, own_loss = torch.stack(sums).sum(dim=0) / n_tokens
    return StepResult(loss, own_loss, norm, n_tokens)


def batch_losses(model: Transformer, recipe: Recipe, batch: Batch) -> Tensor:
    """Return two losses of one batch, both summed over its target tokens, (2,).

    The first is the objective's, the second what parts of the model add to it.
    """
    own: list[Tensor] = []
    src, fed, targets = (
        ids.repeat(recipe.objective.n_passes, 1) for ids in (batch.src, batch.tgt_in, batch.tgt_out)
    )
    with torch.autocast(src.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
        logits = model(src, fed, own)
    loss = recipe.objective.loss(logits.flatten(0, 1), targets.flatten())
    return torch.stack((loss, sum(own, start=loss.new_zeros(())) * batch.n_tokens))


def parameter_groups(model: Transformer, initialisation: Initialisation) -> list[Group]:
    """Return all parameters, those together that are trained alike."""
    matrices = {
        id(module.weight)
        for stack in (model.encoder, model.decoder)
        for module in stack.modules()
        if isinstance(module, nn.Linear)
    }
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        kind = (id(parameter) in matrices, initialisation.rate(name, parameter))
        groups.setdefault(kind, []).append(parameter)
    return [Group(parameters, *kind) for kind, parameters in groups.items()]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate: each group's own factor times ``rate``."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]
