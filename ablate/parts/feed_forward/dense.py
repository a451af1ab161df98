"""Feed-forwards of one hidden layer, with and without a gate.

B batch, T tokens, D d_model, F hidden width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.feed_forward.contract import AuxLosses, FeedForward
from ablate.registry import register


class _OneHiddenLayer(FeedForward):
    """The base of both kinds, whose last layer is ``down``."""

    down: nn.Linear

    def output_layers(self) -> Sequence[nn.Linear]:
        return (self.down,)

    @abstractmethod
    def activation(self, x: Tensor) -> Tensor:
        """Return phi(``x``), (B, T, F)."""


class TwoLayer(_OneHiddenLayer):
    """phi(x W1 + b1) W2 + b2, with phi defined by the parts below.

    Args:
        d_ff: hidden width; 4 * d_model unless given, the paper's ratio.
        bias: whether the two layers have biases.
    """

    def __init__(
        self, dims: Dims, dropout: float, *, d_ff: PositiveInt | None = None, bias: bool = True
    ) -> None:
        super().__init__(dims, dropout, width=d_ff or 4 * dims.d_model)
        self.up = nn.Linear(dims.d_model, self.width, bias=bias)
        self.down = nn.Linear(self.width, dims.d_model, bias=bias)

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        return self.down(self.hidden_norm(self.dropout(self.activation(self.up(x)))))


@register(
    "relu",
    formula="max(0, x W1 + b1) W2 + b2",
    source="Vaswani et al. 2017, arXiv:1706.03762, eq. 2",
)
class Relu(TwoLayer):
    """Rectified linear units."""

    def activation(self, x: Tensor) -> Tensor:
        return F.relu(x)


@register(
    "gelu",
    formula="g(x W1 + b1) W2 + b2, g(y) = y Phi(y)",
    source="Hendrycks & Gimpel 2016, arXiv:1606.08415, sec. 2",
)
class Gelu(TwoLayer):
    """Gaussian error linear units, exact."""

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x)


@register(
    "silu",
    formula="s(x W1 + b1) W2 + b2, s(y) = y sigmoid(y)",
    source="Ramachandran et al. 2017, arXiv:1710.05941, sec. 4 (Swish with beta = 1)",
)
class Silu(TwoLayer):
    """Sigmoid linear units, also known as Swish."""

    def activation(self, x: Tensor) -> Tensor:
        return F.silu(x)


@register(
    "relu_squared",
    formula="max(0, x W1 + b1)^2 W2 + b2",
    source="So et al. 2021, arXiv:2109.08668, sec. 3 (Primer)",
)
class ReluSquared(TwoLayer):
    """Rectified linear units, squared."""

    def activation(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


@register(
    "elu",
    formula="e(x W1 + b1) W2 + b2, e(y) = y above 0, exp(y) - 1 below",
    source="Clevert et al. 2016, arXiv:1511.07289, eq. 15; "
    "Narang et al. 2021, arXiv:2102.11972, table 1",
)
class Elu(TwoLayer):
    """Exponential linear units, with alpha 1."""

    def activation(self, x: Tensor) -> Tensor:
        return F.elu(x)


@register(
    "selu",
    formula="1.0507 e(x W1 + b1) W2 + b2, e(y) = y above 0, 1.6733 (exp(y) - 1) below",
    source="Klambauer et al. 2017, arXiv:1706.02515, eq. 2; "
    "Narang et al. 2021, arXiv:2102.11972, table 1",
)
class Selu(TwoLayer):
    """Scaled exponential linear units."""

    def activation(self, x: Tensor) -> Tensor:
        return F.selu(x)


@register(
    "softplus",
    formula="ln(1 + exp(x W1 + b1)) W2 + b2",
    source="Dugas et al. 2001, NIPS, eq. 1; Narang et al. 2021, arXiv:2102.11972, table 1",
)
class Softplus(TwoLayer):
    """A smooth form of rectified linear units."""

    def activation(self, x: Tensor) -> Tensor:
        return F.softplus(x)


@register(
    "sigmoid",
    formula="sigmoid(x W1 + b1) W2 + b2",
    source="Rumelhart et al. 1986, Nature 323; Narang et al. 2021, arXiv:2102.11972, table 1",
)
class Sigmoid(TwoLayer):
    """The logistic function."""

    def activation(self, x: Tensor) -> Tensor:
        return x.sigmoid()


class Gated(_OneHiddenLayer):
    """(phi(x W + b) * (x V + c)) W2 + b2: one hidden layer gates another; parts below define phi.

    Differs from its paper in that there are biases by default, so that only the gate distinguishes
    it from the other feed-forwards.

    Args:
        d_ff: hidden width of the two-layer feed-forward that it replaces; 4 * d_model unless given.
        matched: whether the hidden width is reduced, to about 2/3 d_ff, so that it has as many
            parameters as that feed-forward; otherwise it is d_ff itself.
        bias: whether the three layers have biases.
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
        d = dims.d_model
        width = d_ff or 4 * d
        if matched:
            width = round(width * (2 * d + bias) / (3 * d + 2 * bias))
        super().__init__(dims, dropout, width=width)
        self.gate = nn.Linear(d, width, bias=bias)
        self.up = nn.Linear(d, width, bias=bias)
        self.down = nn.Linear(width, d, bias=bias)

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        hidden = self.activation(self.gate(x)) * self.up(x)
        return self.down(self.hidden_norm(self.dropout(hidden)))


@register(
    "glu",
    formula="(sigmoid(x W + b) * (x V + c)) W2 + b2",
    source="Shazeer 2020, arXiv:2002.05202, eq. 6; Dauphin et al. 2017, arXiv:1612.08083, eq. 1",
)
class Glu(Gated):
    """Gated by the logistic function."""

    def activation(self, x: Tensor) -> Tensor:
        return x.sigmoid()


@register(
    "bilinear",
    formula="((x W + b) * (x V + c)) W2 + b2",
    source="Shazeer 2020, arXiv:2002.05202, eq. 6",
)
class Bilinear(Gated):
    """The product of two linear layers, with no activation."""

    def activation(self, x: Tensor) -> Tensor:
        return x


@register(
    "reglu",
    formula="(max(0, x W + b) * (x V + c)) W2 + b2",
    source="Shazeer 2020, arXiv:2002.05202, eq. 6",
)
class ReGlu(Gated):
    """Gated by rectified linear units."""

    def activation(self, x: Tensor) -> Tensor:
        return F.relu(x)


@register(
    "geglu",
    formula="(g(x W + b) * (x V + c)) W2 + b2, g(y) = y Phi(y)",
    source="Shazeer 2020, arXiv:2002.05202, eq. 6",
)
class GeGlu(Gated):
    """Gated by Gaussian error linear units, exact."""

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x)


@register(
    "swiglu",
    formula="(silu(x W + b) * (x V + c)) W2 + b2",
    source="Shazeer 2020, arXiv:2002.05202, eq. 6",
)
class SwiGlu(Gated):
    """Gated by SiLU."""

    def activation(self, x: Tensor) -> Tensor:
        return F.silu(x)
