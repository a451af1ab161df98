"""A step on a CPU: the batch in shards, computed by several processes, at most one per core.

Threads within operations gain little when most operations are small: on two cores, a plain loop at
the sizes of Transformer-Tiny makes a fifth fewer steps with two threads than as two processes with
one thread each (results/benchmarks/training_speed_runs_avx2.json). In shards, one run makes as many
as two.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.engines.grad_worker import GradWorker, share_weights
from ablate.training.engines.shards import (
    ShardResult,
    compute_gradients,
    largest_power_of_two,
    n_shards,
    pop_gradients,
    shard_batch,
    sum_results,
    trainable_parameters,
)
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig


class DataParallel(Engine):
    """Splits every batch into shards, and adds up their gradients in a fixed order.

    Each shard draws its dropout masks from its own seed. The result depends neither on the number
    of processes nor on which of them computes which shard. Batches that are too small to be split
    are computed whole, as by the eager engine.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB 13(12), sec. 2.2, of data parallelism.
    """

    name = "data_parallel"
    shares_draws = False

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, step_config, optimizer)
        self._workers: list[GradWorker] = []

    def n_parts(self, batch: Batch) -> int:
        return n_shards(batch)

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        if n_shards(batch) == 1:
            return forward_backward(self.model, self.step_config, StepInputs.of(batch, normalizer))
        self.last_engine_batch = batch
        accumulated = pop_gradients(self.model)
        shards = shard_batch(batch, normalizer, is_training=self.model.training)
        generator_state = torch.default_generator.get_state()
        workers = self._workers_for(len(shards))
        n_each = len(shards) // (1 + len(workers))
        own, *others = (shards[i : i + n_each] for i in range(0, len(shards), n_each))
        for worker, worker_shards in zip(workers, others, strict=True):
            worker.begin(worker_shards)
        result = compute_gradients(self.model, self.step_config, own)
        result = sum_results([result, *(worker.result() for worker in workers)])
        # Later draws must not depend on how many shards this process has computed
        torch.default_generator.set_state(generator_state)
        losses = result.losses
        if any(gradient is not None for gradient in accumulated):  # of earlier batches of the step
            result = ShardResult(losses, accumulated).add_(result)
        for weight, gradient in zip(trainable_parameters(self.model), result.gradient, strict=True):
            weight.grad = gradient
        return losses

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _workers_for(self, n: int) -> list[GradWorker]:
        """Return the workers that compute ``n`` shards with this process, equally many each."""
        is_linux = sys.platform == "linux"
        n_processes = largest_power_of_two(min(n, self.cores)) if is_linux else 1
        if n_processes > 1 and not self._workers:
            share_weights(self.model)
        while len(self._workers) < n_processes - 1:
            self._workers.append(GradWorker(self.model, self.step_config))
        return self._workers[: n_processes - 1]
