"""Norms: how activations are normalised. D is the width, d_model except in a hidden layer."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import Dims, at_least_float32
from ablate.registry import AddedOption, Part, register

_MIN_LENGTH = 1e-5  # the smallest divisor of ScaleNorm, as in its authors' code


class Norm(nn.Module, Part, slot="norm"):
    """The contract: (..., D) in, (..., D) out.

    Args:
        dims: gives the width D, as its d_model, even for a norm inside a sub-layer.

    Attributes:
        width: D.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.width = dims.d_model

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` (..., D) over its last dimension."""
        return x


@register(
    "none",
    formula="x",
    source="Bachlechner et al. 2021, arXiv:2003.04887, sec. 3, without its gate",
    is_contract=True,
)
class NoNorm(Norm):
    """The identity."""


@register(
    "layer",
    formula="gamma (x - mean(x)) / sqrt(var(x) + eps) + beta",
    source="Ba et al. 2016, arXiv:1607.06450, sec. 3",
)
class LayerNorm(Norm):
    """LayerNorm, with the biased variance.

    Args:
        eps: 1e-5 in PyTorch and fairseq, 1e-6 in tensor2tensor.
        bias: whether there is a beta.
    """

    def __init__(self, dims: Dims, *, eps: PositiveFloat = 1e-5, bias: bool = True) -> None:
        super().__init__(dims)
        self.norm = nn.LayerNorm(dims.d_model, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@register(
    "rms",
    formula="gamma x / sqrt(mean(x^2) + eps)",
    source="Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4",
)
class RMSNorm(Norm):
    """LayerNorm without its mean and its beta.

    Args:
        eps: 1e-6 in T5 and Llama.
    """

    def __init__(self, dims: Dims, *, eps: PositiveFloat = 1e-6) -> None:
        super().__init__(dims)
        self.norm = nn.RMSNorm(dims.d_model, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(at_least_float32(x))


@register(
    "annotated",
    formula="a (x - mean(x)) / (std(x) + eps) + b, where std divides by D - 1",
    source="Rush 2018, The Annotated Transformer, ACL workshop W18-2509 (code)",
)
class AnnotatedNorm(Norm):
    """LayerNorm with the unbiased standard deviation and eps outside the root.

    Args:
        eps: 1e-6 in its source.

    Raises:
        ValueError: if D is 1, where that standard deviation is not defined.
    """

    def __init__(self, dims: Dims, *, eps: PositiveFloat = 1e-6) -> None:
        super().__init__(dims)
        if self.width == 1:
            raise ValueError(
                "annotated divides by the width minus 1, and the width is 1; choose norm: layer"
            )
        self.gain = nn.Parameter(torch.ones(self.width))
        self.bias = nn.Parameter(torch.zeros(self.width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = at_least_float32(x)
        std, mean = torch.std_mean(x, dim=-1, keepdim=True)
        return self.gain * (x - mean) / (std + self.eps) + self.bias


@register(
    "scale",
    formula="g x / max(||x||, 1e-5), with one trained g = sqrt(D) at first",
    source="Nguyen & Salazar 2019, arXiv:1910.05895, sec. 2.3",
)
class ScaleNorm(Norm):
    """Scale every vector to the same length, which is trained.

    Args:
        unit: whether the trained parameter is g / sqrt(D), 1 at first, so that a step of Adam
            changes the length by the same share at every width, as muP requires; the paper trains
            g.
    """

    def __init__(self, dims: Dims, *, unit: Annotated[bool, AddedOption(False)] = False) -> None:
        super().__init__(dims)
        length = self.width**0.5
        self.factor = length if unit else 1.0
        self.length = nn.Parameter(torch.full((1,), 1.0 if unit else length))

    def forward(self, x: Tensor) -> Tensor:
        x = at_least_float32(x)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return self.factor * self.length * x / length.clamp(min=_MIN_LENGTH)


@register(
    "dyt",
    formula="gamma tanh(a x) + beta, with one trained a",
    source="Zhu et al. 2025, arXiv:2503.10622, sec. 4",
)
class DynamicTanh(Norm):
    """Apply a tanh to every element; no statistics of the vector are computed.

    Args:
        alpha: initial value of a.
    """

    def __init__(self, dims: Dims, *, alpha: PositiveFloat = 0.5) -> None:
        super().__init__(dims)
        self.alpha = nn.Parameter(torch.full((1,), alpha))
        self.gain = nn.Parameter(torch.ones(self.width))
        self.bias = nn.Parameter(torch.zeros(self.width))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (self.alpha * at_least_float32(x)).tanh() + self.bias


@register(
    "ada",
    formula="(1 - k y) y, y = (x - mean(x)) / sqrt(var(x) + 1e-5), no gradient through the bracket",
    source="Xu et al. 2019, arXiv:1911.07013, sec. 4, with C = 1",
)
class AdaNorm(Norm):
    """LayerNorm whose gain depends on its input instead of being trained; no parameters.

    The standard deviation is the biased one, as in the paper; the authors' code has the unbiased.

    Args:
        k: by how much the gain decreases per unit of the normalised input.
    """

    def __init__(self, dims: Dims, *, k: PositiveFloat = 0.1) -> None:
        super().__init__(dims)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(at_least_float32(x), (self.width,))
        return (1 - self.k * y).detach() * y
