"""The steps of a run: how many, on which batches, and the optimizer that makes the updates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ablate.config.experiment import RunSpec, TrainingSpec
from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.parts.initialisation import Initialisation, roles
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Group, Optimizer
from ablate.registry import build


@dataclass(frozen=True)
class StepResult:
    """What one step did; tensors, so that they can be read later."""

    loss: Tensor  # of the objective, in nats per target token, ()
    aux_loss: Tensor  # what parts of the model added to it, such as a balance loss, ()
    gradient_norm: Tensor  # before clipping, ()
    n_tokens: int  # target tokens, padding not counted


@dataclass(frozen=True)
class StepConfig:
    """How a step is made."""

    objective: Objective
    clip: float | None = None  # largest norm of the whole gradient
    loss_per: Literal["token", "sentence"] = "token"  # what the summed loss is divided by
    precision: str = "fp32"  # or bf16, for autocast with fp32 weights

    @classmethod
    def of(cls, training: TrainingSpec, precision: str) -> StepConfig:
        objective = build(Objective, training.objective, PAD, at="training.objective")
        return cls(objective, training.clip, training.loss_per, precision)


def count_passes(training: TrainingSpec) -> float:
    """Return how many times a step sends each batch through the model and back, on average."""
    objective = build(Objective, training.objective, PAD, at="training.objective")
    optimizer = build(Optimizer, training.optimizer, at="training.optimizer")
    of_optimizer = optimizer.extra_passes / training.accumulate  # one batch of a step
    return objective.n_passes + objective.extra_passes + of_optimizer


def make_optimizer(spec: RunSpec, model: Transformer) -> torch.optim.Optimizer:
    """Return a run's optimizer, of all weights of its model; `set_lr` sets the learning rate."""
    initialisation = build(Initialisation, spec.model.initialisation, spec.model.dims)
    maker = build(Optimizer, spec.training.optimizer, at="training.optimizer")
    optimizer = maker.make(parameter_groups(model, initialisation))
    for group in optimizer.param_groups:
        if spec.training.decay == "matrices" and not group.get("is_matrix", False):
            group["weight_decay"] = 0.0
    return optimizer


def parameter_groups(model: Transformer, initialisation: Initialisation) -> list[Group]:
    """Return all parameters, those together that are trained alike."""
    matrices = {
        id(module.weight)
        for stack in (model.encoder, model.decoder)
        for module in stack.modules()
        if isinstance(module, nn.Linear)
    }
    role_of_weight = {id(linear.weight): role for linear, role in roles(model).items()}
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        rate = initialisation.rate(role_of_weight.get(id(parameter)))
        kind = (id(parameter) in matrices, rate)
        groups.setdefault(kind, []).append(parameter)
    return [Group(parameters, *kind) for kind, parameters in groups.items()]


def set_lr(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate: each group's own factor times ``rate``."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]


def count_steps(training: TrainingSpec, batches: Batches, seed: int) -> int:
    """Return the number of steps; epochs are rounded down to whole ones, target tokens up."""
    if training.steps is not None:
        return training.steps
    if training.epochs is not None:
        epochs = range(training.epochs)
        n_batches = sum(batches.of_epoch(seed, epoch).n_per_epoch for epoch in epochs)
        return max(1, n_batches // training.accumulate)
    assert training.target_tokens is not None, "the spec has one of the three"
    n_tokens, n_batches = 0, 0
    for epoch in itertools.count():
        of_epoch = batches.of_epoch(seed, epoch)
        for rows in of_epoch.epoch(seed, epoch):
            n_tokens += of_epoch.count_tokens(rows)
            n_batches += 1
            if n_tokens >= training.target_tokens:
                return -(-n_batches // training.accumulate)
    raise AssertionError("unreachable: there is always a next epoch")


class BatchStream:
    """An endless stream of batches, epoch after epoch, that can start at any batch of any epoch."""

    def __init__(self, batches: Batches, seed: int, epoch: int = 0, index: int = 0) -> None:
        self._batches = batches
        self._seed = seed
        self.epoch = epoch
        self.index = index
        self._begin()

    def _begin(self) -> None:
        self._of_epoch = self._batches.of_epoch(self._seed, self.epoch)
        self._order = self._of_epoch.epoch(self._seed, self.epoch)

    def take(self, n: int) -> Iterator[Batch]:
        for _ in range(n):
            if self.index == len(self._order):
                self.epoch, self.index = self.epoch + 1, 0
                self._begin()
            yield self._of_epoch.make(self._order[self.index])
            self.index += 1

    @property
    def finished_epochs(self) -> int:
        return self.epoch + (self.index == len(self._order))
