"""Both stacks compiled by ``torch.compile``: fewer and larger kernels, after a long start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.gradient import StepInputs, forward_backward, forward_hidden
from ablate.training.step import StepConfig

OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"fallback_random": True}
"""Dropout masks are those of the eager engine."""
_MOST_MODELS = 256
"""Compiled in one process; PyTorch executes all beyond its own 8 eagerly, and only logs it."""


class Compiled(Engine):
    """Compiles the forward pass through both stacks once, for batches of any shape.

    The output layer and the objective are not compiled. PyTorch caches the code on disk.

    Source: Ansel et al. 2024, "PyTorch 2", ASPLOS, sec. 3 and 4.
    """

    name = "compile"
    captures = True

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, step_config, optimizer)
        torch._dynamo.config.recompile_limit = _MOST_MODELS
        self._forward_hidden = torch.compile(forward_hidden, dynamic=True, options=OPTIONS)

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        n_before, began = _n_compiled(), time.perf_counter()
        inputs = StepInputs.of(batch, normalizer)
        losses = forward_backward(self.model, self.step_config, inputs, self._forward_hidden)
        if _n_compiled() > n_before:
            self.seconds_preparing += time.perf_counter() - began
        self.last_engine_batch = batch
        return losses


def _n_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
