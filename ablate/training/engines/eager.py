"""Steps in PyTorch's eager mode."""

from __future__ import annotations

from torch import Tensor

from ablate.data.batches import Batch
from ablate.training.engines.contract import Engine
from ablate.training.gradient import StepInputs, forward_backward


class Eager(Engine):
    """Runs every operation by itself. Supports every part and every device."""

    name = "eager"

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        return forward_backward(self.model, self.step_config, StepInputs.of(batch, normalizer))
