"""An attention to start from.

B batch, T queries, S keys, H n_heads. Try it: ablate check my_attention.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import Dims, Dropout
from ablate.parts.scaling import Scaling
from ablate.registry import register


# The contract asks for the projections `q`, `k`, `v` and `out`, which `make_projections` makes.
# `mix_scores` acts before the mask, so what compares keys (a top k) belongs into `normalise`, which
# gets masked scores; `mix_weights` acts after the softmax. The kernel is the contract's.
@register(
    "my_attention",
    formula="as full, with g_h times the scores of head h, g trained, at first 1",
    source="you, 2026, sec. 1",
)
class MyAttention(Attention):
    """Every head has a trained temperature.

    Args:
        bias: whether the four projections have one.
    """

    def __init__(
        self, dims: Dims, scaling: Scaling, dropout: Dropout, *, bias: bool = True
    ) -> None:
        super().__init__(dims, scaling, dropout)
        self.make_projections(dims, bias=bias)
        self.gain = nn.Parameter(torch.ones(dims.n_heads))

    def mix_scores(self, scores: Tensor) -> Tensor:
        return scores * self.gain[:, None, None]
