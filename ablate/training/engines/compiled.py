"""Both stacks compiled by ``torch.compile``: fewer and larger kernels, after a long start."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.gradient import Load, add_gradient, through
from ablate.training.step import Recipe


class Compiled(Engine):
    """Compiles the way through both stacks once, for batches of any shape.

    The output layer and the objective stay as they are: they go a piece at a time. What was
    compiled is kept in the user's cache, so that the next run with the same model starts sooner.

    Source: Ansel et al. 2024, "PyTorch 2", ASPLOS, sec. 3 and 4.
    """

    name = "compile"

    def __init__(
        self, model: Transformer, recipe: Recipe, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, recipe, optimizer)
        self._through = torch.compile(through, dynamic=True)

    def add_gradient(self, batch: Batch, n_units: int) -> Tensor:
        n_before, began = _n_compiled(), time.perf_counter()
        found = add_gradient(self.model, self.recipe, Load.of(batch, n_units), self._through)
        if _n_compiled() > n_before:
            self.seconds_preparing += time.perf_counter() - began
        return found


def _n_compiled() -> int:
    """Return how many graphs this process has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
