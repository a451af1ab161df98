"""The check, once in every run, that an engine makes the steps of the eager one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ablate.cuda_graphs import generator_of
from ablate.data.batches import Batch
from ablate.errors import EngineError
from ablate.training.engines.contract import Eager, Engine
from ablate.training.step import set_lr

TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}
"""How far the loss and the gradient of a weight may differ, relative to their size."""

_UPDATE_TOLERANCE = 1e-2  # of the largest change of a weight's elements, for the same gradient
_NORM_FLOOR = 1e-2  # of the whole gradient's norm, added to a weight's: small ones are less precise
_LEARNING_RATE = 1.3e-3  # of the compared updates; unlikely to be a run's first one
_SEED = 0


class SelfCheck:
    """Compares one step of an engine with the same step of the eager engine.

    After the engine has first computed a gradient in its own way, both compute the gradient of that
    batch from the same weights and random numbers, or in evaluation mode if the engine draws other
    numbers. Then both make an update with the engine's gradient, from the same state of the
    optimizer. The run goes on bit for bit as without it. The cost is the time of two steps, and
    copies of weights, gradients and the optimizer's state in the host's memory.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_due = not isinstance(engine, Eager)

    def after_step(self) -> None:
        """Make the comparison, if it is due; an `EngineError` says how the steps differ."""
        batch = self._engine.last_engine_batch
        if batch is None or not self._is_due:
            return
        self._is_due = False
        began = time.perf_counter()
        compare(self._engine, batch)
        self._engine.seconds_preparing += time.perf_counter() - began


def compare(engine: Engine, batch: Batch) -> None:
    """Compare a step of an engine with the eager one, and restore the run; raise if they differ."""
    batch = engine.pad_batch(batch)
    snapshot = _Snapshot(engine)
    eager = Eager(engine.model, engine.step_config, engine.optimizer)
    expected: list[tuple[_Gradient, _Update]] = []

    def step_eagerly() -> Tensor:
        expected.append((_Gradient.of(eager, batch), _Update.of(eager, own.gradients)))
        return batch.src.new_zeros(())

    with snapshot.restored():
        own, own_update = _Gradient.of(engine, batch), _Update.of(engine)
    with snapshot.restored():
        engine.model.zero_grad(set_to_none=True)
        engine.run_on_engine_stream(step_eagerly)
    names = [name for name, _ in engine.model.named_parameters()]
    [(gradient, update)] = expected
    tolerance = TOLERANCE[engine.step_config.precision]
    difference = _gradient_difference(names, own, gradient, tolerance)
    difference = difference or _update_difference(names, snapshot.weights, own_update, update)
    if difference:
        raise EngineError(f"a step of {engine.name} is not that of the eager engine: {difference}")


@dataclass
class _Gradient:
    """The gradient of a batch; tensors are copies on the host."""

    loss: float  # summed over the target tokens, with what parts add
    gradients: list[Tensor | None]  # of each weight

    @classmethod
    def of(cls, engine: Engine, batch: Batch) -> _Gradient:
        """Compute the gradient with the seed of the check, and leave it in the model."""
        for generator in _generators(batch.src.device):
            generator.manual_seed(_SEED)
        losses, _ = engine.accumulate([batch])
        weights = engine.model.parameters()
        gradients = [None if weight.grad is None else _on_host(weight.grad) for weight in weights]
        return cls(float(losses.sum()), gradients)

    @cached_property
    def norm(self) -> float:
        return math.hypot(*(float(x.norm()) for x in self.gradients if x is not None))


@dataclass
class _Update:
    """An update of the weights."""

    norm: float  # of the gradient, before clipping
    weights: list[Tensor]  # after the update, copies on the host

    @classmethod
    def of(cls, engine: Engine, gradients: Sequence[Tensor | None] = ()) -> _Update:
        """Make an update with the learning rate of the check; by default with the own gradients."""
        weights = list(engine.model.parameters())
        for weight, gradient in zip(weights, gradients, strict=bool(gradients)):
            weight.grad = None if gradient is None else gradient.to(weight.device, copy=True)
        set_lr(engine.optimizer, _LEARNING_RATE)
        norm = float(engine.update())
        return cls(norm, [_on_host(weight) for weight in weights])


def _gradient_difference(
    names: Sequence[str], own: _Gradient, eager: _Gradient, tolerance: float
) -> str:
    if not (math.isfinite(eager.loss) and math.isfinite(eager.norm)):
        return ""  # the run diverges with every engine
    if not abs(own.loss - eager.loss) <= tolerance * abs(eager.loss):
        return f"its loss is {own.loss:.6g} in place of {eager.loss:.6g}"
    for name, x, y in zip(names, own.gradients, eager.gradients, strict=True):
        if x is None and y is None:
            continue
        expected = y if y is not None else torch.zeros_like(cast(Tensor, x))
        difference = (expected if x is None else x - expected).norm()
        if not float(difference) <= tolerance * (float(expected.norm()) + _NORM_FLOOR * eager.norm):
            return f"the gradient of {name} differs by {_percentage(difference, expected)}"
    return ""


def _update_difference(
    names: Sequence[str], before: Sequence[Tensor], own: _Update, eager: _Update
) -> str:
    if not math.isfinite(eager.norm):
        return ""
    if not abs(own.norm - eager.norm) <= _UPDATE_TOLERANCE * eager.norm:
        return f"its gradient norm is {own.norm:.6g} in place of {eager.norm:.6g}"
    for name, weight, x, y in zip(names, before, own.weights, eager.weights, strict=True):
        rounding = 8 * torch.finfo(y.dtype).eps * y.abs()
        allowed = _UPDATE_TOLERANCE * (y - weight).abs().max() + rounding
        if not bool(((x - y).abs() <= allowed).all()):
            return f"{name} differs after the update by {_percentage((x - y).norm(), y)}"
    return ""


def _percentage(norm: Tensor, reference: Tensor) -> str:
    return f"{float(norm / reference.norm().clamp(min=1e-30)):.2%}"


class _Snapshot:
    """A copy of everything that a step changes; ``weights`` are copies on the host."""

    def __init__(self, engine: Engine) -> None:
        model, optimizer = engine.model, engine.optimizer
        self._engine, self._is_training = engine, model.training
        self._gradients = [(weight, weight.grad) for weight in model.parameters()]
        self._groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        self._state = [(x, copy(x)) for x in _containers(optimizer.state_dict())]
        of_optimizer = [value for _, content in self._state for value in _values(content)]
        gradients = [gradient for _, gradient in self._gradients]
        tensors = (*model.parameters(), *model.buffers(), *gradients, *of_optimizer)
        self._tensors = [(x, _on_host(x)) for x in tensors if isinstance(x, Tensor)]
        self.weights = [content for _, content in self._tensors[: len(gradients)]]
        device = next(model.parameters()).device
        self._generators = [(g, g.get_state()) for g in _generators(device)]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore everything, in place; in evaluation mode if the engine draws other numbers."""
        model, optimizer = self._engine.model, self._engine.optimizer
        model.train(self._is_training and self._engine.shares_draws)
        try:
            yield
        finally:
            model.train(self._is_training)
            for weight, gradient in self._gradients:
                weight.grad = gradient
            for group, before in zip(optimizer.param_groups, self._groups, strict=True):
                group.update(before)
            for container, content in self._state:
                container.clear()  # of keys that a step adds, too
                if isinstance(container, dict):
                    container.update(content)
                else:
                    container.extend(content)
            with torch.no_grad():
                for tensor, values in self._tensors:
                    tensor.copy_(values)
            for generator, state in self._generators:
                generator.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    host = torch.default_generator
    return [host] if device.type == "cpu" else [host, generator_of(device)]


def _on_host(x: Tensor) -> Tensor:
    return x.detach().to("cpu", copy=True)


def _containers(tree: Any) -> Iterator[Any]:
    """Yield nested dicts and lists: those of a parameter's state are the optimizer's own."""
    yield tree
    for value in _values(tree):
        if isinstance(value, dict | list):
            yield from _containers(value)


def _values(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)
