"""Feed-forwards: what each token does on its own.

B batch, T tokens, D d_model, F d_ff.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.registry import Part, register


class FeedForward(nn.Module, Part, slot="feed_forward"):
    """The contract: (B, T, D) in, (B, T, D) out, token by token.

    Args:
        dims: gives the width D.
        dropout: of the hidden layer.
    """

    def __init__(self, dims: Dims, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every token of ``x`` (B, T, D); return (B, T, D)."""
        raise NotImplementedError


class TwoLayer(FeedForward):
    """phi(x W1 + b1) W2 + b2, with phi given by the parts below.

    Args:
        dims: gives the width D.
        dropout: of the hidden layer.
        d_ff: hidden width; 4 * d_model unless given, the paper's ratio.
        bias: whether the two layers have one.
    """

    def __init__(
        self, dims: Dims, dropout: float, *, d_ff: PositiveInt | None = None, bias: bool = True
    ) -> None:
        super().__init__(dims, dropout)
        width = d_ff or 4 * dims.d_model
        self.up = nn.Linear(dims.d_model, width, bias=bias)
        self.down = nn.Linear(width, dims.d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.activation(self.up(x))))

    def activation(self, x: Tensor) -> Tensor:
        """Return phi(``x``), (B, T, F)."""
        raise NotImplementedError


@register("relu", source="Vaswani et al. 2017, arXiv:1706.03762, eq. 2")
class Relu(TwoLayer):
    """max(0, x W1 + b1) W2 + b2."""

    def activation(self, x: Tensor) -> Tensor:
        return F.relu(x)


@register("gelu", source="Hendrycks & Gimpel 2016, arXiv:1606.08415, sec. 2")
class Gelu(TwoLayer):
    """GELU(x W1 + b1) W2 + b2, with the exact x Phi(x)."""

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x)


@register("swiglu", source="Shazeer 2020, arXiv:2002.05202, eq. 6")
class SwiGlu(FeedForward):
    """(SiLU(x W) * x V) W2: one hidden layer gates another.

    Differs from its paper in that biases are on unless told otherwise, so that the gate is the
    only difference from the other feed-forwards.

    Args:
        dims: gives the width D.
        dropout: of the hidden layer.
        d_ff: hidden width of the two-layer feed-forward it stands in for; 4 * d_model unless given.
        matched: whether the hidden width shrinks, to about 2/3 d_ff, until the parameters are as
            many as that feed-forward has; otherwise it is d_ff itself.
        bias: whether the three layers have one.
    """

    def __init__(
        self,
        dims: Dims,
        dropout: float,
        *,
        d_ff: PositiveInt | None = None,
        matched: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(dims, dropout)
        d = dims.d_model
        width = d_ff or 4 * d
        if matched:
            width = max(1, round(width * (2 * d + bias) / (3 * d + 2 * bias)))
        self.gate = nn.Linear(d, width, bias=bias)
        self.up = nn.Linear(d, width, bias=bias)
        self.down = nn.Linear(width, d, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(F.silu(self.gate(x)) * self.up(x)))
