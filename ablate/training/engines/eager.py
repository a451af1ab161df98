"""Operation by operation, as PyTorch comes."""

from __future__ import annotations

from torch import Tensor

from ablate.data.batches import Batch
from ablate.training.engines.contract import Engine
from ablate.training.gradient import StepInputs, forward_backward


class Eager(Engine):
    """Runs every operation when Python comes to it. Takes every part, on every device."""

    name = "eager"

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        return forward_backward(self.model, self.step_config, StepInputs.of(batch, normalizer))
