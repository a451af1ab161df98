"""The contract of feed-forwards.

B batch, T tokens, D d_model, F hidden width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.dropout import ElementDropout
from ablate.parts.roles import Role, Roles, linear_layers
from ablate.registry import Part


@dataclass(frozen=True)
class AuxLosses:
    """Auxiliary losses that parts add to during one forward pass."""

    is_token: Tensor  # True where there is a token and not padding, (B, T)
    losses: list[Tensor] = field(default_factory=list)  # to be added to the loss per token, each ()


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

        In training ``aux_losses`` receives the part's auxiliary losses.
        """

    @abstractmethod
    def output_layers(self) -> Sequence[nn.Linear]:
        """Return the layers whose outputs are added to the residual stream."""

    def after_update(self) -> None:
        """Update state that is not trained by gradients; called after every optimizer step."""

    def normalise_hidden(self, norm: Callable[[int], nn.Module]) -> None:
        """Normalise the hidden layer, after the activation and its dropout (NormFormer)."""
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
