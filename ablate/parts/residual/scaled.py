"""Residual schemes that scale the stream or the branches.

B batch, T tokens, D d_model, N encoder layers, M decoder layers. f is a sub-layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import LayerInfo
from ablate.parts.feed_forward import FeedForward
from ablate.parts.norm import NoNorm
from ablate.parts.residual.contract import (
    Calibration,
    NormMaker,
    PerSublayer,
    Residual,
    Sublayer,
    norm_of,
)
from ablate.registry import register


@register(
    "deepnorm",
    formula="x <- norm(a x + dropout(f(x))), a = .81 (N^4 M)^(1/16); in the decoder (3 M)^(1/4)",
    source="Wang et al. 2022, arXiv:2203.00555, fig. 2 (DeepNet)",
)
class DeepNorm(PerSublayer):
    """Post-LN with a factor of the stream that grows with depth, and smaller initial weights.

    The initial weights of values, attention output and feed-forward are multiplied by
    .87 (N^4 M)^(-1/16) in the encoder and by (12 M)^(-1/4) in the decoder, for every
    initialisation; the paper's is Xavier's.
    """

    needs_norm = "deepnorm multiplies the stream by a factor above 1 at every sub-layer"

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        n, m = layer_info.n_encoder_layers, layer_info.n_decoder_layers
        if layer_info.side == "encoder":
            depth = n**4 * m
            self.alpha, self.beta = 0.81 * depth ** (1 / 16), 0.87 * depth ** (-1 / 16)
        else:
            self.alpha, self.beta = (3 * m) ** (1 / 4), (12 * m) ** (-1 / 4)

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return norm(self.alpha * x + self.dropout(sublayer(x)))

    def rescale(self, attentions: Sequence[Attention], feed_forward: FeedForward) -> None:
        linears = [linear for attention in attentions for linear in (attention.v, attention.out)]
        with torch.no_grad():
            for weight in (*(linear.weight for linear in linears), *feed_forward.weights()):
                weight.mul_(self.beta)


@register(
    "admin",
    formula="x <- norm(w * x + dropout(f(x))), at first w_i^2 = sum over earlier j of var(f_j)",
    source="Liu et al. 2020, arXiv:2004.08249 (Admin); profiling as in the authors' code",
)
class Admin(Residual):
    """Post-LN with a trained weight of the stream, initialised by a pass over one batch.

    The first w of a stack is 1. The w of each further sub-layer is the standard deviation of the
    sum of the stream and all branches below it without norms, measured over all elements of the
    batch, padding and dropout included. A block that serves several layers has the w of the last.
    """

    needs_norm = "admin scales a stream of unit variance, which requires a norm"
    needs_calibration = True

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        width = norm().width
        self.omegas = nn.ParameterList(torch.ones(width) for _ in self.norms)

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for norm, omega, sublayer in zip(self.norms, self.omegas, sublayers, strict=True):
            y = self.dropout(sublayer(x))
            if self.calibration is not None:
                _calibrate(omega, x, y, self.calibration)
            x = norm(omega * x + y)
        return x


@torch.no_grad()
def _calibrate(omega: Tensor, x: Tensor, y: Tensor, calibration: Calibration) -> None:
    """Set ``omega`` (D,), the weight of the stream ``x`` (B, T, D) that is added to ``y``."""
    omega.fill_(calibration.variance**0.5)
    calibration.variance = (omega * x).var(correction=0) + y.var(correction=0)


class _ScaledBranches(Residual):
    """x + w dropout(f(norm(x))), with a trained w (width,) for every sub-layer."""

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, width: int, initial: float
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.weights = nn.ParameterList(torch.full((width,), initial) for _ in self.norms)

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for norm, weight, sublayer in zip(self.norms, self.weights, sublayers, strict=True):
            x = x + weight * self.dropout(sublayer(norm(x)))
        return x


@register(
    "rezero",
    formula="x <- x + a dropout(f(x)), with a trained a for every sub-layer, 0 at first",
    source="Bachlechner et al. 2021, arXiv:2003.04887, sec. 3",
)
class ReZero(_ScaledBranches):
    """No norm; every layer is the identity at first.

    Differs from the authors' code, in which all sub-layers of a layer have one a.

    Raises:
        ValueError: unless model.norm is none.
    """

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout, width=1, initial=0.0)
        if not isinstance(norm(), NoNorm):
            raise ValueError(
                f"rezero has no norm; set {norm_of(layer_info)} to none, or choose rezero_norm"
            )


@register(
    "rezero_norm",
    formula="x <- x + a dropout(f(norm(x))), as rezero; at the end of the stack x <- norm(x)",
    source="Narang et al. 2021, arXiv:2102.11972, table 1 (ReZero + LayerNorm, ReZero + RMS Norm)",
)
class ReZeroNorm(_ScaledBranches):
    """Pre-LN with a trained factor of each branch, 0 at first, so that layers are the identity."""

    needs_norm = "rezero_norm is rezero with a norm"
    final_norm = True

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout, width=1, initial=0.0)


@register(
    "layer_scale",
    formula="x <- x + l * dropout(f(norm(x))), with a trained vector l; at the end x <- norm(x)",
    source="Touvron et al. 2021, arXiv:2103.17239, sec. 2 (CaiT)",
)
class LayerScale(_ScaledBranches):
    """Pre-LN with a trained factor for each dimension of each branch.

    Args:
        initial: initial value of the factors; the paper has 0.1 for up to 18 layers, 1e-5 for up to
            24 and 1e-6 for more.
    """

    final_norm = True

    def __init__(
        self,
        layer_info: LayerInfo,
        norm: NormMaker,
        dropout: float,
        *,
        initial: PositiveFloat = 0.1,
    ) -> None:
        super().__init__(layer_info, norm, dropout, width=norm().width, initial=initial)
