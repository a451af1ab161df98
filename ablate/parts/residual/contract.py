"""The contract of residual wirings.

B batch, T tokens, D d_model. A sub-layer is any function (B, T, D) -> (B, T, D). The stream is
(B, T, D) too, unless a wiring's `opening` makes it wider and its `closing` narrow again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import LayerInfo
from ablate.parts.dropout import ElementDropout
from ablate.parts.feed_forward import FeedForward
from ablate.parts.norm import NoNorm, Norm
from ablate.registry import Part

Sublayer = Callable[[Tensor], Tensor]


class NormMaker(Protocol):
    """Makes a fresh norm at every call, of the stream's width unless told another."""

    def __call__(self, width: int | None = None) -> Norm:
        """Return a norm over the last dimension, d_model or ``width``."""
        ...


@dataclass
class Calibration:
    """What a profiling pass knows: the variance that has gathered in a stack's stream.

    Attributes:
        variance: of the stream if it were never normalised; a tensor () once a layer has run.
    """

    variance: Tensor | float = 1.0


class Residual(nn.Module, Part, slot="residual"):
    """The contract: one wiring per layer, which sees all the sub-layers of that layer.

    Those that treat all sub-layers alike are `OneByOne`. Depth-dependent ones read ``layer_info``.

    Args:
        layer_info: where the layer stands.
        norm: makes a fresh norm at every call.
        dropout: of the sub-layers' outputs.
        n_norms: norms of the layer; one per sub-layer unless given.

    Attributes:
        needs_norm: why the wiring makes no sense where model.norm is none; empty if it does.
        needs_calibration: whether it wants a profiling pass before training.
        calibration: set during that pass, and None otherwise.

    Raises:
        ValueError: if model.norm is none and the wiring needs one.
    """

    needs_norm: ClassVar[str] = ""
    needs_calibration: ClassVar[bool] = False

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, n_norms: int | None = None
    ) -> None:
        super().__init__()
        if self.needs_norm and isinstance(norm(), NoNorm):
            raise ValueError(
                f"{self.needs_norm}, but model.norm is none; choose a norm, "
                "or a residual that can do without: post, pre or rezero"
            )
        n_norms = layer_info.n_sublayers if n_norms is None else n_norms
        self.norms = nn.ModuleList(norm() for _ in range(n_norms))
        self.dropout = ElementDropout(dropout)
        self.calibration: Calibration | None = None

    @abstractmethod
    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        """Send the stream ``x`` (B, T, D) through ``sublayers``; return the stream."""

    def opening(self, norm: NormMaker) -> nn.Module:
        """Return what a stack of such layers begins with: embeddings (B, T, D) to the stream."""
        return nn.Identity()

    def closing(self, norm: NormMaker) -> nn.Module:
        """Return what a stack of such layers ends in: the stream to (B, T, D)."""
        return nn.Identity()

    def modify_sublayers(
        self, attentions: Sequence[Attention], feed_forward: FeedForward, norm: NormMaker
    ) -> None:
        """Add to the layer's own sub-layers what the wiring needs inside them.

        Raises:
            ValueError: if a sub-layer cannot take it.
        """

    def rescale(self, attentions: Sequence[Attention], feed_forward: FeedForward) -> None:
        """Change the initial weights of the layer's sub-layers, in place, once they are drawn."""


class OneByOne(Residual):
    """Joins each sub-layer to the stream in the same way, one after the other."""

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            x = self.join(x, sublayer, norm)
        return x

    @abstractmethod
    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        """Send ``x`` (B, T, D) through one sub-layer."""
