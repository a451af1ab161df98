"""A step on a CPU: the batch in pieces, each done by one core, by as many cores as there are.

To have threads share every single operation is worth little where most are small: on two cores, a
plain loop at the sizes of Transformer-Tiny makes a fifth fewer steps with two threads than as two
processes with one thread each (results/benchmarks/training_speed_runs_avx2.json). In pieces, one
run makes as many as two.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.engines.grad_worker import GradWorker, share_weights
from ablate.training.engines.micro_batches import (
    MicroBatchResult,
    compute_gradients,
    n_micro_batches,
    split_batch,
    sum_results,
    take_gradients,
    trainable_parameters,
)
from ablate.training.gradient import StepInputs, add_gradient
from ablate.training.step import StepConfig


class DataParallel(Engine):
    """Cuts every batch into pieces, and adds up their gradients in a fixed order.

    It is what data parallelism does, and accumulation: each piece draws dropout of its own, from a
    seed of its own. What comes of it depends neither on how many cores there are nor on which of
    them does what. Batches that are too small for that are done whole, as eagerly.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB 13(12), sec. 2.2, of data parallelism.
    """

    name = "data_parallel"

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, step_config, optimizer)
        self._workers: list[GradWorker] = []

    def n_parts(self, batch: Batch) -> int:
        return n_micro_batches(batch)

    def add_gradient(self, batch: Batch, normalizer: int) -> Tensor:
        if n_micro_batches(batch) == 1:
            return add_gradient(self.model, self.step_config, StepInputs.of(batch, normalizer))
        earlier = take_gradients(self.model)
        pieces = split_batch(batch, normalizer)
        drawn = torch.default_generator.get_state()
        workers = self._workers_for(len(pieces))
        n_each = len(pieces) // (1 + len(workers))
        mine, *others = (pieces[i : i + n_each] for i in range(0, len(pieces), n_each))
        for worker, of_helper in zip(workers, others, strict=True):
            worker.begin(of_helper)
        found = compute_gradients(self.model, self.step_config, mine)
        found = sum_results([found, *(worker.found() for worker in workers)])
        torch.default_generator.set_state(drawn)  # which must not tell who has done what
        losses = found.losses
        if any(gradient is not None for gradient in earlier):  # of batches that this one adds to
            found = MicroBatchResult(losses, earlier).plus(found)
        for weight, gradient in zip(trainable_parameters(self.model), found.gradient, strict=True):
            weight.grad = gradient
        return losses

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _workers_for(self, n: int) -> list[GradWorker]:
        """Return who else does some of ``n`` pieces; all do as many."""
        n_hands = 1
        while 2 * n_hands <= min(n, self.cores) and sys.platform == "linux":
            n_hands *= 2
        if n_hands > 1 and not self._workers:
            share_weights(self.model)
        while len(self._workers) < n_hands - 1:
            self._workers.append(GradWorker(self.model, self.step_config))
        return self._workers[: n_hands - 1]
