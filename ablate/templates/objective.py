"""An objective to start from.

N target tokens, V vocabulary size. Try it: ablate check my_objective.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from ablate.parts.objective import Objective
from ablate.registry import register

_MAX_LOG_P = -1e-12


@register(
    "my_objective", formula="-(1 - p(target))^gamma log p(target)", source="you, 2026, sec. 1"
)
class MyObjective(Objective):
    """Likely tokens count less.

    Args:
        gamma: 0 is the negative log-likelihood.
    """

    def __init__(self, pad: int, *, gamma: NonNegativeFloat = 1.0) -> None:
        super().__init__(pad)
        self.gamma = gamma

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = F.log_softmax(logits.float(), dim=-1)
        of_target = log_p.gather(-1, targets[:, None])[:, 0]  # (N,)
        complement = -torch.expm1(of_target.clamp(max=_MAX_LOG_P))  # 0 would have no gradient
        losses = -(complement**self.gamma) * of_target
        return losses.masked_fill(targets == self.pad, 0.0).sum()
