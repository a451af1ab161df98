"""Operation by operation, as PyTorch comes."""

from __future__ import annotations

from torch import Tensor

from ablate.data.batches import Batch
from ablate.training.engines.contract import Engine
from ablate.training.gradient import StepInputs, add_gradient


class Eager(Engine):
    """Runs every operation when Python comes to it. Takes every part, on every device."""

    name = "eager"

    def add_gradient(self, batch: Batch, normalizer: int) -> Tensor:
        return add_gradient(self.model, self.step_config, StepInputs.of(batch, normalizer))
