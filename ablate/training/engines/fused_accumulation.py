"""The casts and sums of all weights and gradients of a step, in a few kernels.

Autocast launches a kernel to cast each weight and each gradient, and autograd one to add each
gradient: that is a fifth of the kernels of a step in bf16 (results/benchmarks/launches.json).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional


class FusedGradAccumulator:
    """Adds gradients to those of a model, with a few kernels for all weights together.

    With bf16 the linear layers use copies of their weights, which autocast would make otherwise;
    other code that uses such a weight gets the weight itself. The numbers are the same.
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
        """Add a gradient, and return what ``backward_fn`` returns, which adds one to the weights.

        In a call that is captured, all weights must have gradients, whose memory is reused.

        Raises:
            RuntimeError: if a weight gets its first gradient in a capture.
        """
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
        """Add gradients to ``sums``."""
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
