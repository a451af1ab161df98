"""A step on a CPU: the batch in pieces, each done by one core, by as many cores as there are.

To have threads share every single operation is worth little where most are small: on two cores, a
plain loop at the sizes of Transformer-Tiny makes a fifth fewer steps with two threads than as two
processes with one thread each (results/benchmarks/training_speed_runs_avx2.json). In pieces, one
run makes as many as two.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.engines.contract import Engine
from ablate.training.engines.helper import Helper, share
from ablate.training.engines.pieces import Found, added_up, cut, find, n_pieces, taken, trained
from ablate.training.gradient import Load, add_gradient
from ablate.training.step import Recipe


class Split(Engine):
    """Cuts every batch into pieces, and adds up their gradients in a fixed order.

    It is what data parallelism does, and accumulation: each piece draws dropout of its own, from a
    seed of its own. What comes of it depends neither on how many cores there are nor on which of
    them does what. Batches that are too small for that are done whole, as eagerly.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB 13(12), sec. 2.2, of data parallelism.
    """

    name = "split"

    def __init__(
        self, model: Transformer, recipe: Recipe, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, recipe, optimizer)
        self._helpers: list[Helper] = []

    def add_gradient(self, batch: Batch, n_units: int) -> Tensor:
        if n_pieces(batch) == 1:
            return add_gradient(self.model, self.recipe, Load.of(batch, n_units))
        earlier = taken(self.model)
        pieces = cut(batch, n_units)
        drawn = torch.default_generator.get_state()
        helpers = self._helpers_for(len(pieces))
        n_each = len(pieces) // (1 + len(helpers))
        mine, *others = (pieces[i : i + n_each] for i in range(0, len(pieces), n_each))
        for helper, of_helper in zip(helpers, others, strict=True):
            helper.begin(of_helper)
        found = find(self.model, self.recipe, mine)
        found = added_up([found, *(helper.found() for helper in helpers)])
        torch.default_generator.set_state(drawn)  # which must not tell who has done what
        losses = found.losses
        if any(gradient is not None for gradient in earlier):  # of batches that this one adds to
            found = Found(losses, earlier).plus(found)
        for weight, gradient in zip(trained(self.model), found.gradient, strict=True):
            weight.grad = gradient
        return losses

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        self._helpers.clear()

    def _helpers_for(self, n: int) -> list[Helper]:
        """Return who else does some of ``n`` pieces; all do as many."""
        n_hands = 1
        while 2 * n_hands <= min(n, self.cores) and sys.platform == "linux":
            n_hands *= 2
        if n_hands > 1 and not self._helpers:
            share(self.model)
        while len(self._helpers) < n_hands - 1:
            self._helpers.append(Helper(self.model, self.recipe))
        return self._helpers[: n_hands - 1]
