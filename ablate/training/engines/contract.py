"""The contract of engines, and the eager one; estimates of curvature for optimizers that ask.

N tokens, V vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.parts.objective.likelihood import CrossEntropy
from ablate.parts.optimizer import EstimatesCurvature
from ablate.training.candidates import autocast, logits_of_chunks
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig, StepResult
from ablate.training.weights import Weights

_N_SAMPLED = 50  # batches, among which there is one of the usual size


class Engine(ABC):
    """Makes the optimizer steps of one run: gradients, clipping, update.

    A subclass computes the gradient of a batch, and may execute the update in its own way. What a
    step consists of is defined here. The model is in training mode, on the device of the batches to
    come; the caller of `step` sets the learning rate of the optimizer.
    """

    name: ClassVar[str]  # as in records
    captures: ClassVar[bool] = False  # whether decoding is captured in CUDA graphs, too
    shares_draws: ClassVar[bool] = True  # whether a seed gives it the eager engine's random numbers
    keeps_gradients: ClassVar[bool] = False  # whether they stay in the same memory between steps

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        self.model = model
        self.step_config = step_config
        self.optimizer = optimizer
        self.weights = Weights(model)  # what the optimizer updates
        self.note = ""  # why it is not the engine that was asked for
        # Computed otherwise than by the eager engine, such as by a replay; for the self-check
        self.last_engine_batch: Batch | None = None
        self.seconds_preparing = 0.0  # wall time of captures, compilation and the self-check
        self.cores = 1  # how many of a CPU it may use from the next step on
        # Called in every step when the gradients are whole, before they are clipped
        self.before_update: Callable[[], None] | None = None

    def n_parts(self, batch: Batch) -> int:
        """Return into how many parts `forward_backward` splits a batch by itself."""
        return 1

    def micro_batches(self, batches: Sequence[Batch], factor: int) -> list[Batch]:
        """Split ``batches`` for `step` into parts ``factor`` times smaller than its usual ones.

        The step is the same but for random draws, and parts that depend on the batch as a whole.
        """
        if factor == 1:
            return list(batches)
        return [part for batch in batches for part in divide(batch, factor * self.n_parts(batch))]

    def max_micro_batches(self, batches: Batches, factor: int) -> int:
        """Return into how many micro-batches a batch is split at most, of the first batches."""
        if factor == 1:
            return 1
        batches = batches.of_epoch(0, 0)
        sample = (batches.make(rows) for rows in batches.epoch(0, 0)[:_N_SAMPLED])
        return max(len(self.micro_batches([batch], factor)) for batch in sample)

    @abstractmethod
    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        """Add the gradient of a batch to that of the parameters; return its losses.

        Before the gradient is taken, the sum of the losses is divided by ``normalizer``. There are
        two losses, both summed over the target tokens, (2,): the objective's, and what parts of the
        model add to it. The tensor is the caller's own. An `EngineError` means that the process
        cannot go on with this engine.
        """

    def step(self, batches: Sequence[Batch]) -> StepResult:
        """Make one step on ``batches``, which count as one large batch."""
        losses, n_tokens = self.accumulate(batches)
        if self.before_update is not None:
            self.before_update()
        norm = self.update()
        loss, aux_loss = losses / n_tokens
        return StepResult(loss, aux_loss, norm, n_tokens)

    def accumulate(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        """Add the gradients of ``batches``; return their losses, (2,), and number of tokens."""
        per_token = self.step_config.loss_per == "token"
        n_tokens = sum(batch.n_tokens for batch in batches)
        normalizer = n_tokens if per_token else sum(batch.src.size(0) for batch in batches)
        losses = [self.forward_backward(batch, normalizer) for batch in batches]
        return torch.stack(losses).sum(dim=0), n_tokens

    def update(self) -> Tensor:
        """Clip the gradient and step the optimizer; return the norm before, (), in a new tensor."""
        norm = self.weights.clip(self.step_config.clip or math.inf)
        self.optimizer.step()
        self.model.after_update()
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        return norm

    def pad_batch(self, batch: Batch) -> Batch:
        """Return a batch with the padding with which this engine computes it."""
        return batch

    def run_on_engine_stream(self, work: Callable[[], Tensor]) -> Tensor:
        """Do other work on the CUDA stream of the steps, so that it reuses their memory."""
        return work()

    def close(self) -> None:  # noqa: B027 - most engines have nothing to release
        """Release processes and captures; the engine makes no more steps."""


def divide(batch: Batch, n: int) -> list[Batch]:
    """Split a batch into at most ``n`` parts of about equally many pairs; the host waits once."""
    n = min(n, batch.src.size(0))
    if n == 1:
        return [batch]
    n_tokens = (batch.tgt_out != PAD).sum(dim=1).cpu().tensor_split(n)  # of each pair
    sides = (x.tensor_split(n) for x in (batch.src, batch.tgt_in, batch.tgt_out))
    return [
        Batch(src, tgt_in, tgt_out, int(counts.sum()), index)
        for src, tgt_in, tgt_out, counts, index in zip(
            *sides, n_tokens, batch.index.tensor_split(n), strict=True
        )
    ]


class Eager(Engine):
    """Runs every operation by itself. Supports every part and every device."""

    name = "eager"

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        return forward_backward(self.model, self.step_config, StepInputs.of(batch, normalizer))


def estimate_curvature(engine: Engine, step: int, batch: Batch) -> bool:
    """Give the optimizer of an engine an estimate before a step, if it wants one; return whether.

    The labels of the batch are replaced. Apart from random draws nothing else changes.

    Source: Liu et al. 2023, arXiv:2305.14342, alg. 2.
    """
    optimizer = engine.optimizer
    if not isinstance(optimizer, EstimatesCurvature) or (step - 1) % optimizer.every:
        return False
    model = engine.model.eval()
    gradients = [weight.grad for weight in model.parameters()]
    model.zero_grad(set_to_none=True)
    try:
        engine.run_on_engine_stream(partial(_gradient, model, batch, engine.step_config.precision))
        optimizer.add_curvature(batch.n_tokens)
    finally:
        model.train()
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient
    return True


def _gradient(model: Transformer, batch: Batch, precision: str) -> Tensor:
    sampled = StepInputs.of(with_sampled_labels(model, batch, precision), batch.n_tokens)
    return forward_backward(model, StepConfig(CrossEntropy(PAD), precision=precision), sampled)


@torch.no_grad()
def with_sampled_labels(model: Transformer, batch: Batch, precision: str) -> Batch:
    """Return a batch whose labels are drawn from the model's predictions, never padding."""
    with autocast(batch.src.device, precision):
        hidden = model.hidden(batch.tgt_in, model.encode(batch.src)).flatten(0, 1)  # (N, D)
    pad = torch.tensor([PAD], device=hidden.device)
    samples = []
    for logits, labels in logits_of_chunks(model, hidden, batch.tgt_out.flatten(), precision):
        p = logits.float().index_fill(1, pad, -torch.inf).softmax(-1)
        sample = (p / torch.empty_like(p).exponential_()).argmax(dim=-1)  # as multinomial
        samples.append(sample.masked_fill(labels == PAD, PAD))
    return replace(batch, tgt_out=torch.cat(samples).view_as(batch.tgt_out))
