"""A process that finds gradients for another one: a fork of it, with the same weights in memory."""

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

from ablate.model import Transformer
from ablate.processes import die_with_parent
from ablate.training.engines.micro_batches import (
    MicroBatch,
    MicroBatchResult,
    compute_gradients,
    trainable_parameters,
)
from ablate.training.step import StepConfig

_ALIGNED = 64  # bytes, as PyTorch's own memory: what is added in which order depends on it


class GradWorker:
    """Does pieces in a process of its own, which ends with this one at the latest.

    The process is a fork: it has the model as it is now, sees every change of weights that are
    `shared`, and no other change. Linux has that; elsewhere libraries do not bear a fork.

    Args:
        model: on the CPU, with `shared` weights, in training mode.
        step_config: how its gradients are found.
    """

    def __init__(self, model: Transformer, step_config: StepConfig) -> None:
        self._gradient = _in_common(
            [torch.empty_like(weight) for weight in trainable_parameters(model)]
        )
        context = multiprocessing.get_context("fork")
        self._line, other = context.Pipe()
        args = (other, self._line, model, step_config, self._gradient)
        self._process = context.Process(target=_serve, args=args, daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads; those of a worker hold nothing we need
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()

    def begin(self, pieces: Sequence[MicroBatch]) -> None:
        """Have pieces done; `found` waits for them.

        Raises:
            MemoryError: if the process was killed by signal 9, as Linux does when memory is short.
            RuntimeError: if the process has died otherwise.
        """
        try:
            self._line.send(pieces)
        except OSError:
            raise self._death() from None

    def found(self) -> MicroBatchResult:
        """Return what came of the pieces; the gradient lasts until the next ones.

        Raises:
            MemoryError: if the process was killed by signal 9, as Linux does when memory is short.
            RuntimeError: if the process has died otherwise.
            Exception: whatever kept it from finding the gradient.
        """
        try:
            told = self._line.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if isinstance(told, Exception):
            raise told
        losses, is_there = told
        pairs = zip(self._gradient, is_there, strict=True)
        return MicroBatchResult(
            torch.from_numpy(losses), [x if is_so else None for x, is_so in pairs]
        )

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._line.close()

    def _death(self) -> Exception:
        self._process.join()
        status = self._process.exitcode or 0
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        text = f"a process that helped with the gradient has ended: {how}"
        if -status == signal.SIGKILL:
            return MemoryError(f"{text} (out of memory?)")
        return RuntimeError(text)


def share_weights(model: nn.Module) -> None:
    """Move the weights of a model to where helpers see every change of them."""
    weights = list(model.parameters())
    for weight, place in zip(weights, _in_common([w.data for w in weights]), strict=True):
        weight.data = place


def _in_common(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies in memory that this process will have in common with its forks."""
    starts, size = [], 0
    for x in tensors:
        starts.append(size)
        size += -(-x.numel() * x.element_size() // _ALIGNED) * _ALIGNED
    memory = mmap.mmap(-1, max(size, 1))
    return [
        torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=start)
        .view(x.shape)
        .copy_(x)
        for x, start in zip(tensors, starts, strict=True)
    ]


def _serve(
    line: Connection,
    other: Connection,
    model: Transformer,
    step_config: StepConfig,
    gradient: Sequence[Tensor],
) -> None:
    """Do what comes over the line, until it is cut."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is told to stop, ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other.close()
    torch.set_num_threads(1)
    while True:
        try:
            line.send(_outcome(model, step_config, line.recv(), gradient))
        except (EOFError, OSError):
            os._exit(0)


def _outcome(
    model: Transformer,
    step_config: StepConfig,
    pieces: Sequence[MicroBatch],
    gradient: Sequence[Tensor],
) -> object:
    """Write the gradient of pieces to where it is in common; return what else there is to say."""
    try:
        found = compute_gradients(model, step_config, pieces)
    except Exception as error:  # it is for the other process to say what that means
        return _portable(error)
    for mine, place in zip(found.gradient, gradient, strict=True):
        if mine is not None:
            place.copy_(mine)
    return found.losses.numpy(), [x is not None for x in found.gradient]


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error with a constructor of its own may do anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
