"""A step as two CUDA graphs: forward and backward, one for each shape of a batch, and the update.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ablate.cuda_graphs import GraphCapturer
from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig

_MOST_CAPTURES = 512  # each takes some MiB of the device


class CudaGraph(Engine):
    """Computes a new shape eagerly, captures it the second time, and replays it from then on.

    Batches of every epoch have the same numbers of rows and target tokens (see `Batches`), so there
    are about as many captures as batches of distinct lengths. They share one pool of memory.

    The update is captured for PyTorch's fused optimizers (`adam` and `adamw`), which keep
    everything that it changes on the device. Others update eagerly, in a few large kernels.

    On a CPU, which captures nothing, the steps are computed on the same buffers. A run shares its
    ``capturer`` with decoding.

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

        So do updates outside of a capture: PyTorch rounds rates in tensors to single precision, and
        a continued run must not depend on which updates are captured. On a CPU ``capturable`` stays
        False, or PyTorch would warn that nothing is captured.
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
        """Run work: eagerly the first time, then by a replay of its capture."""
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
        n_rows, n_src = batch.src.shape
        return n_rows, min(padded_length(n_src), self.model.max_len), batch.tgt_in.size(1)

    @staticmethod
    def _make_inputs(n_rows: int, n_src: int, n_tgt: int, device: torch.device) -> StepInputs:
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
    """Return a multiple of 2 up to 32 tokens, of 4 up to 64, and so on: few shapes."""
    step = 2
    while n > 16 * step:
        step *= 2
    return -(-n // step) * step


class FusedGradAccumulator:
    """Casts all weights and adds all gradients of a step in a few kernels.

    Autocast launches a kernel to cast each weight and each gradient, and autograd one to add each
    gradient: a fifth of the kernels of a step in bf16 (results/benchmarks/launches.json). With bf16
    the linear layers use copies of their weights, as autocast makes; other code that uses such a
    weight gets the weight itself. The numbers are the same.
    """

    def __init__(self, model: nn.Module, precision: str) -> None:
        self._weights = [p for p in model.parameters() if p.requires_grad]
        # Not subclasses, whose forward may be another
        self._linears = [module for module in model.modules() if type(module) is nn.Linear]
        of_linears = [weight for linear in self._linears for weight in linear.parameters()]
        self._copies: dict[Tensor, Tensor] = {
            weight: weight.detach().bfloat16().requires_grad_(weight.requires_grad)
            for weight in (of_linears if precision == "bf16" else ())
        }
        # Made once: of another object `torch.compile` would compile the model anew at every call
        self._forwards = {
            linear: partial(
                _linear,
                linear,
                self._copies[linear.weight],
                None if linear.bias is None else self._copies[linear.bias],
            )
            for linear in (self._linears if self._copies else ())
        }

    def __call__(self, backward_fn: Callable[[], Tensor], *, is_captured: bool) -> Tensor:
        """Add the gradient of ``backward_fn`` and return its losses; a captured sum must exist."""
        sums: _Gradients = {weight: weight.grad for weight in self._weights}
        _clear_gradients(self._weights)
        try:
            with self._use_copies():
                losses = backward_fn()
            self._add({weight: weight.grad for weight in self._weights}, sums, is_captured)
            of_copies = {weight: copy.grad for weight, copy in self._copies.items()}
            self._add(of_copies, sums, is_captured)
        finally:
            _clear_gradients(self._copies.values())
            for weight, total in sums.items():
                weight.grad = total
        return losses

    @contextmanager
    def _use_copies(self) -> Iterator[None]:
        if not self._copies:
            yield
            return
        with torch.no_grad():
            torch._foreach_copy_(list(self._copies.values()), list(self._copies))
        for linear, forward in self._forwards.items():
            linear.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            for linear in self._forwards:
                del linear.forward

    def _add(self, gradients: _Gradients, sums: _Gradients, is_captured: bool) -> None:
        new = {weight: grad for weight, grad in gradients.items() if grad is not None}
        weights, cast = list(new), list(new.values())
        if any(x.dtype != w.dtype for w, x in new.items()):
            cast = [torch.empty_like(x, dtype=w.dtype) for w, x in new.items()]
            torch._foreach_copy_(cast, list(new.values()))
        in_precision = dict(zip(weights, cast, strict=True))
        old = {weight: total for weight in new if (total := sums[weight]) is not None}
        if is_captured and len(old) < len(new):
            raise RuntimeError("a weight has its first gradient in a capture")
        if old:
            torch._foreach_add_(list(old.values()), [in_precision[weight] for weight in old])
        sums.update(in_precision | old)


_Gradients = dict[Tensor, Tensor | None]


def _linear(layer: nn.Linear, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Compute ``layer``; where autocast is enabled, with the copies of its weights."""
    if not torch.is_autocast_enabled(x.device.type):
        return nn.Linear.forward(layer, x)
    return functional.linear(x, weight, bias)


def _clear_gradients(weights: Iterable[Tensor]) -> None:
    for weight in weights:
        weight.grad = None
