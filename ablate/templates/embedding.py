"""An embedding to start from.

B batch, T tokens, D d_model, V vocabulary size. Try it: ablate check my_embedding.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.embedding import Embedding, Vocabulary
from ablate.registry import register


# The contract has the tables and all common options; without keyword-only arguments of its own a
# part has none of them.
@register(
    "my_embedding",
    formula="logits = (gain x) E^T, gain trained; one table E per side",
    source="you, 2026, sec. 1",
)
class MyEmbedding(Embedding):
    """The target table is the output, after a trained gain for each dimension."""

    def __init__(self, dims: Dims, vocabulary: Vocabulary) -> None:
        super().__init__(dims, vocabulary)
        self.gain = nn.Parameter(torch.ones(dims.d_model))

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x * self.gain)
