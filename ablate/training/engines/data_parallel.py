"""A step on a CPU: the batch in shards, computed by several processes, at most one per core.

Threads within operations gain little when most operations are small: on two cores, a plain loop at
the sizes of Transformer-Tiny makes a fifth fewer steps with two threads than as two processes with
one thread each (results/benchmarks/training_speed_runs_avx2.json).

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.errors import KilledError
from ablate.model import Transformer
from ablate.processes import die_with_parent, exit_reason
from ablate.training.engines.contract import Engine
from ablate.training.gradient import (
    Gradient,
    StepInputs,
    forward_backward,
    pop_gradients,
    trainable_parameters,
)
from ablate.training.step import StepConfig


class DataParallel(Engine):
    """Splits every batch into shards, and adds up their gradients in a fixed order.

    Each shard draws its dropout masks from its own seed, so that the result depends neither on the
    number of processes nor on which of them computes which shard. Batches that are too small to be
    split are computed whole, as by the eager engine.

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


_ALIGNMENT = 64  # bytes, that of PyTorch's allocator; sums may round differently at others


class GradWorker:
    """A fork of this process that computes the gradients of shards with the same weights.

    It sees changes of the model only where weights are in shared memory (`share_weights`), and ends
    with this process at the latest. Only for Linux: elsewhere libraries do not survive a fork.
    """

    def __init__(self, model: Transformer, step_config: StepConfig) -> None:
        self._gradient = _to_shared_memory(
            [torch.empty_like(weight) for weight in trainable_parameters(model)]
        )
        context = multiprocessing.get_context("fork")
        self._connection, other = context.Pipe()
        args = (os.getpid(), other, self._connection, model, step_config, self._gradient)
        self._process = context.Process(target=_serve, args=args, daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads; those of a run hold no locks needed here
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        # Python would send SIGTERM at its exit, which the process ignores, and wait
        util.Finalize(self, self._process.kill, exitpriority=0)
        other.close()

    def begin(self, shards: Sequence[Shard]) -> None:
        """Begin to compute shards; a process that was killed by signal 9 raises a `KilledError`."""
        try:
            self._connection.send(shards)
        except OSError:
            raise self._exit_error() from None

    def result(self) -> ShardResult:
        """Wait for the result of the shards; its gradient lasts until the next ones."""
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._exit_error() from None
        if isinstance(answer, Exception):
            raise answer
        losses, has_gradient = answer
        pairs = zip(self._gradient, has_gradient, strict=True)
        return ShardResult(torch.from_numpy(losses), [x if has_x else None for x, has_x in pairs])

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _exit_error(self) -> Exception:
        self._process.join()
        status = self._process.exitcode or 0
        text = f"a process that computed gradients has ended: {exit_reason(status)}"
        if -status == signal.SIGKILL:
            return KilledError(text)
        return RuntimeError(text)


def share_weights(model: nn.Module) -> None:
    """Move the weights of a model to memory that this process shares with its workers."""
    weights = list(model.parameters())
    for weight, shared in zip(weights, _to_shared_memory([w.data for w in weights]), strict=True):
        weight.data = shared


def _to_shared_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    starts, size = [], 0
    for x in tensors:
        starts.append(size)
        size += -(-x.numel() * x.element_size() // _ALIGNMENT) * _ALIGNMENT
    memory = mmap.mmap(-1, size)
    return [
        torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=start)
        .view(x.shape)
        .copy_(x)
        for x, start in zip(tensors, starts, strict=True)
    ]


def _serve(
    parent: int,
    connection: Connection,
    other_end: Connection,
    model: Transformer,
    step_config: StepConfig,
    gradient: Sequence[Tensor],
) -> None:
    """Answer the requests of the parent until the connection ends."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm and `timeout` send it to all processes
    other_end.close()
    torch.set_num_threads(1)
    while True:
        try:
            connection.send(_answer(model, step_config, connection.recv(), gradient))
        except (EOFError, OSError):
            os._exit(0)


def _answer(
    model: Transformer,
    step_config: StepConfig,
    shards: Sequence[Shard],
    gradient: Sequence[Tensor],
) -> object:
    """Write the gradient of shards to shared memory; return the rest of their result."""
    try:
        result = compute_gradients(model, step_config, shards)
    except Exception as error:  # the parent raises it
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the error's own constructor may raise any
            return RuntimeError(f"{type(error).__name__}: {error}")
        return error
    for own, shared in zip(result.gradient, gradient, strict=True):
        if own is not None:
            shared.copy_(own)
    return result.losses.numpy(), [x is not None for x in result.gradient]


MAX_SHARDS = 8
_FEWEST_TOKENS = 1500  # of a shard; with fewer, one core is faster with the whole batch

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """Some pairs of a batch, in a form that can be sent to another process."""

    src: Ids  # (B, S)
    tgt_in: Ids  # decoder input, shifted right, (B, T)
    tgt_out: Ids  # labels, (B, T)
    normalizer: int  # what the summed losses are divided by before the gradient is taken
    seed: int  # of the random numbers of its forward pass
    is_training: bool  # whether the model is in training mode

    def inputs(self) -> StepInputs:
        src, tgt_in, tgt_out = map(torch.from_numpy, (self.src, self.tgt_in, self.tgt_out))
        n_tokens = int((tgt_out != PAD).sum())
        rows = torch.arange(len(src))
        return StepInputs.of(Batch(src, tgt_in, tgt_out, n_tokens, rows), self.normalizer)


def n_shards(batch: Batch) -> int:
    """Return how many shards a batch of this shape has, however many cores there are."""
    return largest_power_of_two(min(batch.src.size(0), batch.tgt_out.numel() // _FEWEST_TOKENS))


def max_n_shards(batch_tokens: int) -> int:
    """Return the most shards that batches of at most ``batch_tokens`` are split into."""
    return largest_power_of_two(batch_tokens // _FEWEST_TOKENS)


def largest_power_of_two(limit: int) -> int:
    """Return the largest power of two up to ``limit`` and `MAX_SHARDS`, at least 1."""
    return 2 ** (max(1, min(MAX_SHARDS, limit)).bit_length() - 1)


def shard_batch(batch: Batch, normalizer: int, *, is_training: bool) -> list[Shard]:
    """Split a batch into shards of about equally many rows, and draw a seed for each."""
    n, ids = n_shards(batch), (batch.src, batch.tgt_in, batch.tgt_out)
    seeds = torch.randint(2**62, (n,)).tolist()
    sides = ([x.numpy() for x in side.tensor_split(n)] for side in ids)
    return [
        Shard(src, tgt_in, tgt_out, normalizer, seed, is_training)
        for src, tgt_in, tgt_out, seed in zip(*sides, seeds, strict=True)
    ]


@dataclass(frozen=True)
class ShardResult:
    """The sums over one or several shards."""

    losses: Tensor  # as `forward_backward` returns them, (2,)
    gradient: Gradient

    def add_(self, other: ShardResult) -> ShardResult:
        """Add ``other`` in place and return the sum."""
        pairs = list(zip(self.gradient, other.gradient, strict=True))
        both = [(x, y) for x, y in pairs if x is not None and y is not None]
        if both:
            torch._foreach_add_([x for x, _ in both], [y for _, y in both])
        gradient = [x if x is not None or y is None else y.clone() for x, y in pairs]
        return ShardResult(self.losses + other.losses, gradient)


def compute_gradients(
    model: Transformer, step_config: StepConfig, shards: Sequence[Shard]
) -> ShardResult:
    """Return the sum of the gradients of a power of two of shards; the model must have none.

    Sums of halves are added recursively, so that the sum is the same bit for bit if another process
    has computed one of the halves.
    """
    if len(shards) > 1:
        middle = len(shards) // 2
        first = compute_gradients(model, step_config, shards[:middle])
        return first.add_(compute_gradients(model, step_config, shards[middle:]))
    (shard,) = shards
    if model.training != shard.is_training:  # a worker follows the mode of its parent
        model.train(shard.is_training)
    torch.default_generator.manual_seed(shard.seed)
    losses = forward_backward(model, step_config, shard.inputs())
    return ShardResult(losses, pop_gradients(model))


def sum_results(results: Sequence[ShardResult]) -> ShardResult:
    """Add results of equally many shards, in the order of `compute_gradients`."""
    if len(results) == 1:
        return results[0]
    middle = len(results) // 2
    return sum_results(results[:middle]).add_(sum_results(results[middle:]))
