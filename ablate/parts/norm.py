"""Norms: how activations are normalised. D d_model."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.registry import Part, register


class Norm(nn.Module, Part, slot="norm"):
    """The contract: (..., D) in, (..., D) out."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` (..., D) over its last dimension."""
        return x


@register("none", source="Bachlechner et al. 2021, arXiv:2003.04887, sec. 3, without its gate")
class NoNorm(Norm):
    """The identity."""


@register("layer", source="Ba et al. 2016, arXiv:1607.06450, sec. 3")
class LayerNorm(Norm):
    """gamma (x - mean) / sqrt(var + eps) + beta, with the biased variance.

    Args:
        dims: gives the width D.
        eps: 1e-5 in PyTorch and fairseq, 1e-6 in tensor2tensor.
        bias: whether there is a beta.
    """

    def __init__(self, dims: Dims, *, eps: PositiveFloat = 1e-5, bias: bool = True) -> None:
        super().__init__(dims)
        self.norm = nn.LayerNorm(dims.d_model, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@register("rms", source="Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4")
class RMSNorm(Norm):
    """gamma x / sqrt(mean(x^2) + eps): LayerNorm without its mean and its beta."""

    def __init__(self, dims: Dims, *, eps: PositiveFloat = 1e-6) -> None:
        super().__init__(dims)
        self.norm = nn.RMSNorm(dims.d_model, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)
