"""A step as two CUDA graphs: forward and backward, recorded once per shape of a batch; the update.

At the sizes of most ablations a GPU waits for Python: a step is some thousand small kernels, each
of which costs the host more than the device. A graph is launched at once.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.engines.fused_accumulation import FusedGradAccumulator
from ablate.training.gradient import StepInputs, add_gradient
from ablate.training.step import StepConfig

_MOST = 512  # recordings; each takes some MiB of the device


class CudaGraph(Engine):
    """Replays what it has recorded; what is new is done as it is, and recorded when it comes back.

    Batches of one epoch come back in the next with the same numbers of rows and target tokens (see
    `Batches`), so there are about as many recordings as there are batches of distinct lengths, and
    one of clipping and the update, which are the same for all. They share one pool of memory.

    An update is recorded where all that it changes is on the device and the rate may be there too:
    PyTorch's fused optimizers (`adam` and `adamw`). Others update as they do eagerly, in a few
    large kernels.

    On a CPU, where there is nothing to record, the same steps are taken on the same buffers.

    Attributes:
        n_recorded: recordings there are.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
    """

    name = "cuda_graph"
    keeps_gradients = True

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, step_config, optimizer)
        device = next(model.parameters()).device
        self.n_recorded = 0
        self._capturer = GraphCapturer(device)
        self._at_once = FusedGradAccumulator(model, step_config.precision)
        self._slots: dict[tuple[int, int, int], StaticBuffers] = {}
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._records_updates = _is_on_device(optimizer)
        self._update, self._n_moved = self._new_update(), 0

    def add_gradient(self, batch: Batch, normalizer: int) -> Tensor:
        if self.note:
            return add_gradient(self.model, self.step_config, StepInputs.of(batch, normalizer))
        slot = self._buffers_for(batch)
        slot.fill(batch, normalizer)
        try:
            return self._do(slot.gradient)
        except _NotRecordedError as error:
            self.note = f"the step could not be recorded: {error}"
            warnings.warn(f"{self.note}; training goes on eagerly", stacklevel=2)
            return self.add_gradient(batch, normalizer)

    def update(self) -> Tensor:
        if not self._records_updates:
            return super().update()
        n_moved = sum(p.grad is not None for p in self._parameters)
        if n_moved > self._n_moved:  # a recording moves those that had a gradient by then
            self._update, self._n_moved = self._new_update(), n_moved
        for buffer, group in zip(self._rates, self.optimizer.param_groups, strict=True):
            buffer.fill_(group["lr"])
        try:
            return self._do(self._update)
        except _NotRecordedError as error:
            warnings.warn(
                f"the update could not be recorded: {error}; it is made eagerly", stacklevel=2
            )
            self._records_updates = False
            return super().update()

    def _new_update(self) -> CapturableWork:
        return CapturableWork(self._update_by_buffers, super().update)

    def _update_by_buffers(self) -> Tensor:
        """Update with rates that are read where they are, since a number would be for ever."""
        groups = self.optimizer.param_groups
        said = [(group["lr"], group["capturable"]) for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"], group["capturable"] = rate, True
        try:
            return super().update()
        finally:
            for group, (rate, is_capturable) in zip(groups, said, strict=True):
                group["lr"], group["capturable"] = rate, is_capturable

    def _do(self, work: CapturableWork) -> Tensor:
        """Do some work, by a recording if it has been done before.

        Raises:
            _NotRecordedError: if it cannot be recorded; then nothing has been done.
        """
        if work.replay is None:
            if not work.has_run or self.n_recorded == _MOST:
                work.has_run = True  # what a first time allocates and looks up must not be recorded
                return self._capturer.warm_up(work.plain)
            work.replay = self._record(work.do)
        return work.replay().clone()

    def _record(self, do: Callable[[], Tensor]) -> Callable[[], Tensor]:
        began = time.perf_counter()
        try:
            replay = self._capturer.record(do)
        except RuntimeError as error:
            raise _NotRecordedError(str(error).strip().partition("\n")[0]) from error
        finally:
            self.seconds_preparing += time.perf_counter() - began
        self.n_recorded += 1
        return replay

    def _buffers_for(self, batch: Batch) -> StaticBuffers:
        n_rows, n_src = batch.src.shape
        shape = n_rows, min(rounded(n_src), self.model.max_len), batch.tgt_in.size(1)
        if shape not in self._slots:
            load = _buffers(*shape, batch.src.device)
            add = partial(add_gradient, self.model, self.step_config, load)
            add, plain = (partial(self._at_once, add, is_recorded=is_so) for is_so in (True, False))
            self._slots[shape] = StaticBuffers(load, CapturableWork(add, plain))
        return self._slots[shape]


def _is_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether all that an optimizer changes is where the weights are, its counts too."""
    return all(group.get("fused") and "capturable" in group for group in optimizer.param_groups)


class _NotRecordedError(Exception):
    """Work does what a recording cannot hold; the message is the reason."""


@dataclass
class CapturableWork:
    """What is to be recorded when it is done for the second time.

    Attributes:
        do: does it, on tensors that stay where they are.
        plain: does the same where nothing is recorded.
        has_run: whether it has been done.
        replay: does what was recorded; None before.
    """

    do: Callable[[], Tensor]
    plain: Callable[[], Tensor]
    has_run: bool = False
    replay: Callable[[], Tensor] | None = None


def rounded(n: int) -> int:
    """Return the length that sources of ``n`` tokens are padded to: few shapes, little padding.

    A multiple of 2 up to 32 tokens, of 4 up to 64, and so on.
    """
    step = 2
    while n > 16 * step:
        step *= 2
    return -(-n // step) * step


@dataclass(frozen=True)
class StaticBuffers:
    """The buffers of one shape of a batch.

    Attributes:
        load: the buffers.
        gradient: adds the gradient of what is in them to that of the parameters.
    """

    load: StepInputs
    gradient: CapturableWork

    def fill(self, batch: Batch, normalizer: int) -> None:
        """Write a batch into the buffers; the source is filled up with padding."""
        n_src, load = batch.src.size(1), self.load
        load.src[:, :n_src] = batch.src
        load.src[:, n_src:] = PAD
        load.tgt_in.copy_(batch.tgt_in, non_blocking=True)
        load.tgt_out.copy_(batch.tgt_out, non_blocking=True)
        for buffer, n in ((load.n_tokens, batch.n_tokens), (load.normalizer, normalizer)):
            assert isinstance(buffer, Tensor), "they were made here"
            buffer.fill_(n)


def _buffers(n_rows: int, n_src: int, n_tgt: int, device: torch.device) -> StepInputs:
    """Return a load of padding."""

    def ids(n: int) -> Tensor:
        return torch.full((n_rows, n), PAD, device=device)

    def number() -> Tensor:
        return torch.ones((), device=device)

    return StepInputs(ids(n_src), ids(n_tgt), ids(n_tgt), number(), number())
