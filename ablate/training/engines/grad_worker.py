"""A fork of this process that computes gradients with the same weights."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from ablate.errors import KilledError
from ablate.model import Transformer
from ablate.processes import die_with_parent, exit_reason
from ablate.training.engines.shards import (
    Shard,
    ShardResult,
    compute_gradients,
    trainable_parameters,
)
from ablate.training.step import StepConfig

_ALIGNMENT = 64  # bytes, that of PyTorch's allocator; sums may round differently at others


class GradWorker:
    """Computes the gradients of shards in its own process, which ends with this one at the latest.

    The process is a fork: it has the current state of the model, and sees later changes only of
    weights in shared memory (`share_weights`). Only for Linux: on other systems libraries do not
    survive a fork.
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
        other.close()

    def begin(self, shards: Sequence[Shard]) -> None:
        """Begin to compute shards; `result` waits for them.

        Raises:
            KilledError: if the process was killed by signal 9, as Linux does when memory is short.
            RuntimeError: if the process has died otherwise.
        """
        try:
            self._connection.send(shards)
        except OSError:
            raise self._exit_error() from None

    def result(self) -> ShardResult:
        """Return the result of the shards; its gradient lasts until the next ones.

        Raises what `begin` raises, and any error of the computation.
        """
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
        """Kill the process."""
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
    """Return copies in memory that this process shares with its forks."""
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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
