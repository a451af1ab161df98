"""What one optimizer step is made of: the gradient of a batch, groups of parameters, the rate.

The loss of a step is per target token, over all the batches that the step accumulates. How the
pieces are put together and executed is the affair of `engines`.

B batch, S source tokens, T target tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class Load:
    """What one pass forward and backward is about.

    Attributes:
        src: source ids, (B, S).
        tgt_in: what the decoder reads, (B, T).
        tgt_out: what it shall write, (B, T).
        n_tokens: target tokens that are not padding; a number, or a tensor ().
        n_units: what the summed losses are divided by before the gradient is taken; likewise.
        places: of those tokens among all B T, (n_tokens,); None: logits are made of padding too,
            so that the shape of everything follows from B, S and T.
    """

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    n_tokens: int | Tensor
    n_units: int | Tensor
    places: Tensor | None = None

    @classmethod
    def of(cls, batch: Batch, n_units: int) -> Load:
        """Return the load of a batch, without the logits of padding."""
        is_token = batch.tgt_out.flatten() != PAD
        places = torch.nonzero_static(is_token, size=batch.n_tokens)[:, 0]
        return cls(batch.src, batch.tgt_in, batch.tgt_out, batch.n_tokens, n_units, places)


Through = Callable[[Transformer, Tensor, Tensor], tuple[Tensor, list[Tensor]]]
"""Model, source ids and target ids to what the logits are made from, and to parts' own losses."""


def through(model: Transformer, src: Tensor, tgt: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Send ``src`` (B, S) and ``tgt`` (B, T) through both stacks.

    Returns:
        What the logits are made from, (B, T, D), and the losses that parts add, () each.
    """
    own: list[Tensor] = []
    return model.hidden(tgt, model.encode(src, own), own), own


def add_gradient(
    model: Transformer, recipe: Recipe, load: Load, through: Through = through
) -> Tensor:
    """Add the gradient of a load's losses to that of the parameters.

    The logits of all tokens together would be the largest tensor of a step by far, so they are
    made, used and forgotten a piece at a time.

    Args:
        model: on the device of the load.
        recipe: how.
        load: some pairs.
        through: how to go through the stacks.

    Returns:
        Two losses, both summed over the target tokens, (2,): the objective's, and what parts of
        the model add to it.
    """
    n_passes = recipe.objective.n_passes
    src, fed = (ids.repeat(n_passes, 1) for ids in (load.src, load.tgt_in))
    autocast = partial(
        torch.autocast, src.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"
    )
    with autocast():
        hidden, own = through(model, src, fed)  # (passes B, T, D)
    hidden = hidden.unflatten(0, (n_passes, -1)).flatten(1, 2)  # (passes, B T, D)
    targets = load.tgt_out.flatten()
    if load.places is not None:
        hidden, targets = hidden[:, load.places], targets[load.places]
    n_rows = max(1, model.embedding.rows_at_once(src.device) // n_passes)
    pieces = [piece.detach().requires_grad_() for piece in hidden.split(n_rows, dim=1)]
    total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
    for piece, wanted in zip(pieces, targets.split(n_rows), strict=True):
        with autocast():
            logits = model.embedding.logits(piece.flatten(0, 1))
        loss = recipe.objective.loss(logits, wanted.repeat(n_passes))
        (loss / load.n_units).backward()
        total = total + loss.detach()
    own_loss = sum(own, start=total.new_zeros(())) * load.n_tokens
    gradient = torch.cat([_gradient(piece) for piece in pieces], dim=1)
    roots = [hidden, own_loss / load.n_units] if own_loss.requires_grad else [hidden]
    torch.autograd.backward(roots, [gradient, None][: len(roots)])
    return torch.stack((total, own_loss.detach()))


def _gradient(piece: Tensor) -> Tensor:
    return torch.zeros_like(piece) if piece.grad is None else piece.grad


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
