"""Residual wirings: how the sub-layers of one layer join the residual stream.

B batch, T tokens, D d_model. A sub-layer is any function (B, T, D) -> (B, T, D).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ablate.parts.dims import Place
from ablate.parts.norm import Norm
from ablate.registry import Part, register

Sublayer = Callable[[Tensor], Tensor]


class Residual(nn.Module, Part, slot="residual"):
    """The contract: one wiring per layer, which sees all the sub-layers of that layer.

    Most wirings treat the sub-layers one by one and override `join` alone; one that needs the
    whole layer overrides `forward`. Depth-dependent ones read ``place``.

    Args:
        place: where the layer stands.
        norm: makes a fresh norm at every call.
        dropout: of the sub-layers' outputs.
    """

    def __init__(self, place: Place, norm: Callable[[], Norm], dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm() for _ in range(place.n_sublayers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        """Send ``x`` (B, T, D) through ``sublayers`` in turn; return (B, T, D)."""
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            x = self.join(x, sublayer, norm)
        return x

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        """Send ``x`` (B, T, D) through one sub-layer."""
        raise NotImplementedError

    def closing(self, norm: Callable[[], Norm]) -> nn.Module:
        """Return what a stack of such layers ends in."""
        return nn.Identity()


@register("post", source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.1")
class PostNorm(Residual):
    """Norm after the sum: norm(x + dropout(f(x))).

    Args:
        place: where the layer stands.
        norm: makes a fresh norm.
        dropout: of the sub-layers' outputs.
        final_norm: one more norm at the end of the stack, as in torch.nn.Transformer.
    """

    def __init__(
        self,
        place: Place,
        norm: Callable[[], Norm],
        dropout: float,
        *,
        final_norm: bool = False,
    ) -> None:
        super().__init__(place, norm, dropout)
        self.final_norm = final_norm

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return norm(x + self.dropout(sublayer(x)))

    def closing(self, norm: Callable[[], Norm]) -> nn.Module:
        return norm() if self.final_norm else nn.Identity()


@register("pre", source="Xiong et al. 2020, arXiv:2002.04745, fig. 1b")
class PreNorm(Residual):
    """Norm inside the branch: x + dropout(f(norm(x))).

    Args:
        place: where the layer stands.
        norm: makes a fresh norm.
        dropout: of the sub-layers' outputs.
        final_norm: the norm at the end of the stack, without which its output keeps growing.
    """

    def __init__(
        self,
        place: Place,
        norm: Callable[[], Norm],
        dropout: float,
        *,
        final_norm: bool = True,
    ) -> None:
        super().__init__(place, norm, dropout)
        self.final_norm = final_norm

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return x + self.dropout(sublayer(norm(x)))

    def closing(self, norm: Callable[[], Norm]) -> nn.Module:
        return norm() if self.final_norm else nn.Identity()


@register(
    "post_dropout_last",
    source="A. Persson, 'Transformers from scratch' (tutorial code); not in the literature",
)
class PostNormDropoutLast(Residual):
    """Dropout after the norm, on the stream itself: dropout(norm(x + f(x)))."""

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return self.dropout(norm(x + sublayer(x)))
