"""The contract of engines: an optimizer step is the same sequence in all of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ablate.data.batches import Batch, Batches
from ablate.model import Transformer
from ablate.training.micro_batches import divide
from ablate.training.step import StepConfig, StepResult
from ablate.training.weights import Weights

_N_SAMPLED = 50  # batches, among which there is one of the usual size


class Engine(ABC):
    """Makes the optimizer steps of one run: gradients, clipping, update.

    A subclass computes the gradient of a batch, and may execute the update in its own way. What a
    step consists of is defined here.

    Args:
        model: in training mode, on the device of the batches to come.
        step_config: how a step is made.
        optimizer: of the model's parameters; the caller of `step` sets its learning rate.

    Attributes:
        name: as in records.
        captures: whether decoding is captured in CUDA graphs where training uses the engine.
        shares_draws: whether it draws the same random numbers as the eager engine from a seed.
        keeps_gradients: whether gradients stay in the same memory from step to step.
        note: why it is not the engine that was asked for; empty if it is.
        last_engine_batch: the last batch that was computed otherwise than by the eager engine, for
            example by a replay; the self-check repeats it. None while there is none.
        seconds_preparing: wall time of captures, compilation and the self-check.
        cores: how many of a CPU it may use from the next step on.
        weights: what the optimizer updates.
        before_update: called in every step when the gradients are whole, before they are clipped.
    """

    name: ClassVar[str]
    captures: ClassVar[bool] = False
    shares_draws: ClassVar[bool] = True
    keeps_gradients: ClassVar[bool] = False

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        self.model = model
        self.step_config = step_config
        self.optimizer = optimizer
        self.weights = Weights(model)
        self.note = ""
        self.last_engine_batch: Batch | None = None
        self.seconds_preparing = 0.0
        self.cores = 1
        self.before_update: Callable[[], None] | None = None

    def n_parts(self, batch: Batch) -> int:
        """Return into how many parts `forward_backward` splits a batch by itself."""
        return 1

    def micro_batches(self, batches: Sequence[Batch], factor: int) -> list[Batch]:
        """Split ``batches`` for `step` into parts ``factor`` times smaller than its usual ones.

        The step takes less memory. It is the same but for random draws, and for parts of the model
        that depend on the batch as a whole.
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
        """Add the gradient of a batch to that of the parameters.

        Args:
            batch: sentence pairs.
            normalizer: what the summed losses are divided by before the gradient is taken.

        Returns:
            Two losses, both summed over the target tokens, (2,): the objective's, and what parts
            of the model add to it. The tensor is the caller's own.

        Raises:
            EngineError: if the process cannot go on with this engine.
        """

    def step(self, batches: Sequence[Batch]) -> StepResult:
        """Make one step on ``batches``, which count as one large batch.

        Args:
            batches: one, or several whose gradients are accumulated.

        Raises:
            EngineError: if the process cannot go on with this engine.
        """
        losses, n_tokens = self.accumulate(batches)
        if self.before_update is not None:
            self.before_update()
        norm = self.update()
        loss, aux_loss = losses / n_tokens
        return StepResult(loss, aux_loss, norm, n_tokens)

    def accumulate(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        """Add the gradients of ``batches``.

        Returns:
            The two losses, summed over the target tokens, (2,), and the number of these.
        """
        per_token = self.step_config.loss_per == "token"
        n_tokens = sum(batch.n_tokens for batch in batches)
        normalizer = n_tokens if per_token else sum(batch.src.size(0) for batch in batches)
        losses = [self.forward_backward(batch, normalizer) for batch in batches]
        return torch.stack(losses).sum(dim=0), n_tokens

    def update(self) -> Tensor:
        """Clip the gradient, step the optimizer, and zero the gradients.

        Returns:
            The norm of the whole gradient before clipping, (). The tensor is the caller's own.
        """
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
