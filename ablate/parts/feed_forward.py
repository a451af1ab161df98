"""Feed-forwards: the sub-layers that act on every token by itself.

B batch, T tokens, D d_model, F hidden width, E experts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import AtLeastTwo, Dims
from ablate.parts.dropout import ElementDropout
from ablate.parts.roles import Role, Roles, linear_layers
from ablate.registry import Part, register


@dataclass(frozen=True)
class AuxLosses:
    """Auxiliary losses that parts add to during one forward pass.

    Attributes:
        is_token: True where there is a token and not padding, (B, T).
        losses: terms to be added to the objective, (), each per token.
    """

    is_token: Tensor
    losses: list[Tensor] = field(default_factory=list)


class FeedForward(nn.Module, Part, slot="feed_forward"):
    """The contract: (B, T, D) in, (B, T, D) out, token by token.

    Args:
        dims: gives the width D.
        dropout: of the hidden layer.
        width: F, of each hidden layer.
    """

    def __init__(self, dims: Dims, dropout: float, width: int) -> None:
        super().__init__()
        self.dropout = ElementDropout(dropout)
        self.width = width
        self.hidden_norm: nn.Module = nn.Identity()

    @abstractmethod
    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        """Transform every token of ``x`` (B, T, D); return (B, T, D).

        Args:
            x: tokens.
            aux_losses: in training, receives the part's auxiliary losses.
        """

    @abstractmethod
    def output_layers(self) -> Sequence[nn.Linear]:
        """Return the layers whose outputs are added to the residual stream."""

    def normalise_hidden(self, norm: Callable[[int], nn.Module]) -> None:
        """Normalise the hidden layer, after the activation and its dropout (NormFormer).

        Args:
            norm: makes a norm of a given width.
        """
        self.hidden_norm = norm(self.width)

    def weights(self) -> Iterator[Tensor]:
        """Yield the matrices that transform tokens, for residual schemes that rescale them."""
        return (linear.weight for linear in linear_layers(self))

    def linear_roles(self) -> Roles:
        """Return the role of every linear layer of the feed-forward."""
        outputs = self.output_layers()
        return {
            linear: Role(kind="feed_forward", ends_branch=linear in outputs)
            for linear in linear_layers(self)
        }


class TwoLayer(FeedForward):
    """phi(x W1 + b1) W2 + b2, with phi defined by the parts below.

    Args:
        dims: gives the width D.
        dropout: of the hidden layer.
        d_ff: hidden width; 4 * d_model unless given, the paper's ratio.
        bias: whether the two layers have one.
    """

    def __init__(
        self, dims: Dims, dropout: float, *, d_ff: PositiveInt | None = None, bias: bool = True
    ) -> None:
        super().__init__(dims, dropout, width=d_ff or 4 * dims.d_model)
        self.up = nn.Linear(dims.d_model, self.width, bias=bias)
        self.down = nn.Linear(self.width, dims.d_model, bias=bias)

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        return self.down(self.hidden_norm(self.dropout(self.activation(self.up(x)))))

    def output_layers(self) -> Sequence[nn.Linear]:
        return (self.down,)

    @abstractmethod
    def activation(self, x: Tensor) -> Tensor:
        """Return phi(``x``), (B, T, F)."""


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


class Gated(FeedForward):
    """(phi(x W + b) * (x V + c)) W2 + b2: one hidden layer gates another; parts below define phi.

    Differs from its paper in that there are biases by default, so that the gate is the only
    difference from the other feed-forwards.

    Args:
        dims: gives the width D.
        dropout: of the hidden layer.
        d_ff: hidden width of the two-layer feed-forward that it replaces; 4 * d_model unless given.
        matched: whether the hidden width is reduced, to about 2/3 d_ff, so that it has as many
            parameters as that feed-forward; otherwise it is d_ff itself.
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

    def output_layers(self) -> Sequence[nn.Linear]:
        return (self.down,)

    @abstractmethod
    def activation(self, x: Tensor) -> Tensor:
        """Return phi(``x``), (B, T, F)."""


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


@register(
    "mixture_of_experts",
    formula="sum of p_e relu_e(x) over the top_k e, p = softmax(x R); p / sum p where top_k > 1",
    source="Fedus et al. 2021, arXiv:2101.03961, eq. 1 to 6; Shazeer et al. 2017, arXiv:1701.06538",
)
class MixtureOfExperts(FeedForward):
    """A router selects a few of many `relu` feed-forwards for each token.

    With one expert per token its gate is the router's probability, as in Switch; otherwise the
    router would get no gradient. With more, the gates of the selected experts are divided by their
    sum, as in Shazeer et al.

    Differs from its papers in that all experts are computed for every token and the gates of the
    others are 0: the result is the same and no token is dropped for lack of capacity, but the cost
    is that of all experts. The router has neither noise nor jitter, and computes in single
    precision under bf16, too (Fedus et al., sec. 2.4, selective precision).

    In training balance * E * sum over e of (share of the selections that are e) * (mean probability
    of e), over all tokens but padding, is added to the loss; it is lowest where both are uniform.

    Args:
        dims: gives the width D.
        dropout: of the hidden layers.
        d_ff: hidden width of each expert; 4 * d_model unless given, the paper's ratio.
        bias: whether the layers of the experts have one; the router has none.
        n_experts: E; 4, the smallest number of Shazeer et al., because all are computed.
        top_k: experts per token; 1 in Switch, from 2 to 4 elsewhere.
        balance: weight of the load-balancing loss.

    Raises:
        ValueError: if top_k is all experts, so that nothing is selected or balanced.
    """

    batch_dependence = "adds a loss that is of the whole batch"

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        dropout: float,
        *,
        d_ff: PositiveInt | None = None,
        bias: bool = True,
        n_experts: AtLeastTwo = 4,
        top_k: PositiveInt = 1,
        balance: NonNegativeFloat = 0.01,
    ) -> None:
        if top_k >= n_experts:
            raise ValueError(
                f"top_k ({top_k}) of {n_experts} experts leaves nothing to choose; "
                "give a smaller top_k or a larger n_experts"
            )
        super().__init__(dims, dropout, width=d_ff or 4 * dims.d_model)
        self.router = nn.Linear(dims.d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(
            Relu(dims, dropout, d_ff=self.width, bias=bias) for _ in range(n_experts)
        )
        self.top_k = top_k
        self.balance = balance

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        p = self._probabilities(x)
        selected = torch.zeros_like(p).scatter(-1, p.topk(self.top_k).indices, 1.0)
        gates = p * selected
        if self.top_k > 1:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        if self.training and aux_losses is not None:
            imbalance = self._imbalance(p, selected, aux_losses.is_token)
            aux_losses.losses.append(self.balance * imbalance)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)  # (B, T, D, E)
        return (outputs * gates[:, :, None]).sum(dim=-1)

    def normalise_hidden(self, norm: Callable[[int], nn.Module]) -> None:
        for expert in self._experts():
            expert.normalise_hidden(norm)

    def output_layers(self) -> Sequence[nn.Linear]:
        return [layer for expert in self._experts() for layer in expert.output_layers()]

    def weights(self) -> Iterator[Tensor]:
        """Yield the matrices of the experts; the router only selects among them."""
        for expert in self._experts():
            yield from expert.weights()

    def _probabilities(self, x: Tensor) -> Tensor:
        """Return the router's probabilities (B, T, E), in single precision or better."""
        device = "cpu" if x.is_meta else x.device.type  # which has no autocast
        with torch.autocast(device, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            return self.router(wide).softmax(dim=-1)

    def _experts(self) -> Iterator[FeedForward]:
        return (cast(FeedForward, expert) for expert in self.experts)

    def _imbalance(self, p: Tensor, selected: Tensor, is_token: Tensor) -> Tensor:
        """Return how unbalanced the selection is, (): from 1, where it is uniform, to E.

        Args:
            p: probabilities, (B, T, E).
            selected: 1 where an expert was selected and 0 elsewhere, (B, T, E).
            is_token: True where there is a token, (B, T).
        """
        n_tokens = is_token.sum().clamp(min=1)
        load = (selected * is_token[:, :, None]).sum(dim=(0, 1)) / (n_tokens * self.top_k)
        mean_p = (p * is_token[:, :, None]).sum(dim=(0, 1)) / n_tokens
        return len(self.experts) * (load * mean_p).sum()
