"""The contract of residual schemes.

B batch, T tokens, D d_model. A sub-layer is any function (B, T, D) -> (B, T, D). The stream is
(B, T, D) too, unless a scheme's `input_transform` and `output_transform` change its width.
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
    """Makes a new norm at every call, over a last dimension of ``width``, d_model if None."""

    def __call__(self, width: int | None = None) -> Norm: ...


@dataclass
class Calibration:
    """The state of a profiling pass through a stack."""

    # That of the stream if it were never normalised; a tensor () after the first layer
    variance: Tensor | float = 1.0


def norm_of(layer_info: LayerInfo) -> str:
    """Return what messages call the norm of a layer."""
    return f"the {layer_info.side}'s norm (model.norm, model.{layer_info.side}.norm)"


class Residual(nn.Module, Part, slot="residual"):
    """The contract: one module per layer, which calls all the sub-layers of that layer.

    Schemes that treat all sub-layers alike are `PerSublayer`. Those that depend on depth read
    ``layer_info``.

    Args:
        layer_info: the location of the layer.
        norm: makes a new norm at every call.
        dropout: rate for the sub-layers' outputs.
        n_norms: number of norms of the layer; one per sub-layer unless given.

    Attributes:
        needs_norm: the reason for which the scheme requires a norm; empty if it requires none.
        needs_calibration: whether a profiling pass before training is required.
        layer_dropout_blocker: why layers cannot be dropped, such as "numbers the outputs of
            layers"; empty if they can.
        final_norm: whether `output_transform` is one more norm.
        calibration: set during that pass, and None otherwise.

    Raises:
        ValueError: if model.norm is none and the scheme needs one.
    """

    needs_norm: ClassVar[str] = ""
    needs_calibration: ClassVar[bool] = False
    layer_dropout_blocker: ClassVar[str] = ""
    final_norm: bool = False

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, n_norms: int | None = None
    ) -> None:
        super().__init__()
        if self.needs_norm and isinstance(norm(), NoNorm):
            raise ValueError(
                f"{self.needs_norm}, but {norm_of(layer_info)} is none; choose a norm, "
                "or a residual that needs none: post, pre or rezero"
            )
        n_norms = layer_info.n_sublayers if n_norms is None else n_norms
        self.norms = nn.ModuleList(norm() for _ in range(n_norms))
        self.dropout = ElementDropout(dropout)
        self.calibration: Calibration | None = None

    @abstractmethod
    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        """Apply ``sublayers`` to the stream ``x`` (B, T, D); return the stream."""

    def input_transform(self, norm: NormMaker) -> nn.Module:
        """Return a module for the start of the stack: from embeddings (B, T, D) to the stream."""
        return nn.Identity()

    def output_transform(self, norm: NormMaker) -> nn.Module:
        """Return a module for the end of the stack: from the stream to (B, T, D)."""
        return norm() if self.final_norm else nn.Identity()

    def modify_sublayers(
        self, attentions: Sequence[Attention], feed_forward: FeedForward, norm: NormMaker
    ) -> None:
        """Add the modules and parameters that the scheme requires inside the layer's sub-layers.

        Raises:
            ValueError: if a sub-layer has them already.
        """

    def rescale(self, attentions: Sequence[Attention], feed_forward: FeedForward) -> None:
        """Scale the weights of the layer's sub-layers, in place, after their initialisation."""


class Copies(nn.Module):
    """Makes a stream of ``n`` copies of the embeddings: (B, T, D) to (B, T, n D)."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat(1, 1, self.n)


class PerSublayer(Residual):
    """Applies the sub-layers one after the other, each in the same way."""

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            x = self.apply_sublayer(x, sublayer, norm)
        return x

    @abstractmethod
    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        """Apply one sub-layer to the stream ``x`` (B, T, D); return the stream."""
