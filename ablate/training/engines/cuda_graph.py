"""A step as two CUDA graphs: forward and backward, one for each shape of a batch, and the update.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from ablate.cuda_graphs import GraphCapturer
from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.engines.fused_accumulation import FusedGradAccumulator
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig

_MOST_CAPTURES = 512  # each takes some MiB of the device


class CudaGraph(Engine):
    """Computes a new shape eagerly, captures it the second time, and replays it from then on.

    The batches of every epoch have the same numbers of rows and target tokens (see `Batches`), so
    there are about as many captures as batches of distinct lengths, and one of clipping and the
    update. They share one pool of memory.

    The update is captured for PyTorch's fused optimizers (`adam` and `adamw`), which keep
    everything that it changes, and the learning rate, on the device. Others update eagerly, in a
    few large kernels.

    On a CPU, which captures nothing, the steps are computed on the same buffers.

    A run's own ``capturer`` is shared with decoding; by default the engine makes one.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
    """

    name = "cuda_graph"
    captures = True
    keeps_gradients = True

    def __init__(
        self,
        model: Transformer,
        step_config: StepConfig,
        optimizer: torch.optim.Optimizer,
        capturer: GraphCapturer | None = None,
    ) -> None:
        super().__init__(model, step_config, optimizer)
        device = next(model.parameters()).device
        self._capturer = capturer or GraphCapturer(device)
        self.n_captures = 0
        self._is_cuda = device.type == "cuda"
        self._accumulator = FusedGradAccumulator(model, step_config.precision)
        self._buffers: dict[tuple[int, int, int], tuple[StepInputs, GraphedCallable]] = {}
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._captures_updates = all(
            group.get("fused") and "capturable" in group for group in optimizer.param_groups
        )  # the whole state is on the device, with step counts
        self._update, self._n_updated = self._new_update(), 0

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        shape = self._shape(batch)
        if shape not in self._buffers:
            inputs = self._make_inputs(*shape, batch.src.device)
            add = partial(forward_backward, self.model, self.step_config, inputs)
            work = GraphedCallable("a training step", partial(self._accumulator, add))
            self._buffers[shape] = inputs, work
        inputs, work = self._buffers[shape]
        n_src = batch.src.size(1)
        inputs.src[:, :n_src] = batch.src
        inputs.src[:, n_src:] = PAD
        inputs.tgt_in.copy_(batch.tgt_in, non_blocking=True)
        inputs.tgt_out.copy_(batch.tgt_out, non_blocking=True)
        for buffer, n in ((inputs.n_tokens, batch.n_tokens), (inputs.normalizer, normalizer)):
            assert isinstance(buffer, Tensor), "they were made here"
            buffer.fill_(n)
        losses = self._run(work)
        if work.replay is not None:
            self.last_engine_batch = batch
        return losses

    def update(self) -> Tensor:
        if not self._captures_updates:
            return super().update()
        n_updated = sum(p.grad is not None for p in self._parameters)
        if n_updated > self._n_updated:  # a capture updates only those that had a gradient
            self._update, self._n_updated = self._new_update(), n_updated
        for buffer, group in zip(self._rates, self.optimizer.param_groups, strict=True):
            buffer.fill_(group["lr"])
        return self._run(self._update)

    def pad_batch(self, batch: Batch) -> Batch:
        n_missing = self._shape(batch)[1] - batch.src.size(1)
        return replace(batch, src=functional.pad(batch.src, (0, n_missing), value=PAD))

    def run_on_engine_stream(self, work: Callable[[], Tensor]) -> Tensor:
        return self._capturer.warm_up(work)

    def close(self) -> None:
        self._buffers.clear()
        self._update = self._new_update()
        self._capturer.clear()

    def _new_update(self) -> GraphedCallable:
        return GraphedCallable("the update", self._update_with_tensor_lr)

    def _update_with_tensor_lr(self, *, is_captured: bool) -> Tensor:
        """Update with learning rates in tensors, since a capture would never change a number.

        Updates outside of a capture have them too: PyTorch rounds rates in tensors to single
        precision, and a run that is continued must not depend on which of its updates are captured.
        On a CPU ``capturable`` stays False, or PyTorch would warn that nothing is captured.
        """
        groups = self.optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"], group["capturable"] = rate, is_captured and self._is_cuda
        try:
            return super().update()
        finally:
            for group, (rate, is_capturable) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = rate, is_capturable

    def _run(self, work: GraphedCallable) -> Tensor:
        """Run work: eagerly the first time, then by a replay of its capture.

        Raises:
            EngineError: if it cannot be captured.
        """
        if work.replay is None:
            if not work.is_warm or self.n_captures == _MOST_CAPTURES:
                work.is_warm = True
                return self._capturer.warm_up(partial(work.function, is_captured=False))
            began = time.perf_counter()
            captured = partial(work.function, is_captured=True)
            work.replay = self._capturer.capture(work.name, captured)
            self.seconds_preparing += time.perf_counter() - began
            self.n_captures += 1
        return work.replay().clone()

    def _shape(self, batch: Batch) -> tuple[int, int, int]:
        """Return the rows, source tokens and target tokens of a batch's buffers."""
        n_rows, n_src = batch.src.shape
        return n_rows, min(padded_length(n_src), self.model.max_len), batch.tgt_in.size(1)

    @staticmethod
    def _make_inputs(n_rows: int, n_src: int, n_tgt: int, device: torch.device) -> StepInputs:
        """Return inputs that are all padding."""
        src, tgt_in, tgt_out = (
            torch.full((n_rows, n), PAD, device=device) for n in (n_src, n_tgt, n_tgt)
        )
        n_tokens, normalizer = (torch.ones((), device=device) for _ in range(2))
        return StepInputs(src, tgt_in, tgt_out, n_tokens, normalizer)


@dataclass
class GraphedCallable:
    """Work that is captured the second time."""

    name: str  # for errors
    function: Callable[..., Tensor]  # gets ``is_captured``; its tensors stay where they are
    is_warm: bool = False  # whether the work has been done once
    replay: Callable[[], Tensor] | None = None


def padded_length(n: int) -> int:
    """Return the length that sources of ``n`` tokens are padded to: few shapes, little padding.

    It is a multiple of 2 up to 32 tokens, of 4 up to 64, and so on.
    """
    step = 2
    while n > 16 * step:
        step *= 2
    return -(-n // step) * step
