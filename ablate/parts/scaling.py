"""Scaling: what becomes of the dot products before their softmax.

B batch, T queries, S keys, H n_heads, G heads of keys, K d_k.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.registry import Part, register

TypicalLength = Annotated[int, Field(ge=2)]

_EPS = 1e-6  # under the root of a mean square
_SHARPEST = 100.0  # the largest factor of a cosine, 1 / 0.01
_SHARPNESS = 10.0  # its start, 1 / 0.1


class Scaling(nn.Module, Part, slot="scaling"):
    """The contract: three hooks around the dot product; all change nothing here.

    Queries and keys pass through theirs right after their projection, before any rotation by
    position and before keys are cached.

    Args:
        dims: gives d_k, d_model and the number of heads.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def query(self, q: Tensor) -> Tensor:
        """Change queries (B, H, T, K)."""
        return q

    def key(self, k: Tensor) -> Tensor:
        """Change keys (B, G, S, K), of G <= H heads."""
        return k

    def scores(self, scores: Tensor) -> Tensor:
        """Change the dot products (B, H, T, S), before position biases, masking and softmax."""
        return scores


@register(
    "none",
    formula="s(q, k) = q . k",
    source="Luong et al. 2015, arXiv:1508.04025, sec. 3.1 (dot)",
)
class NoScaling(Scaling):
    """Plain dot products."""


@register(
    "sqrt_dk",
    formula="s(q, k) = q . k / sqrt(d_k)",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.1",
)
class SqrtDk(Scaling):
    """Unit variance for queries and keys of unit variance."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = dims.d_k**-0.5

    def query(self, q: Tensor) -> Tensor:
        return q * self.factor


@register(
    "sqrt_dmodel",
    formula="s(q, k) = q . k / sqrt(d_model)",
    source="a popular misreading of Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.1",
)
class SqrtDmodel(Scaling):
    """With d_model = n_heads d_k it is sqrt(n_heads) times flatter than the paper's."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = dims.d_model**-0.5

    def query(self, q: Tensor) -> Tensor:
        return q * self.factor


@register(
    "dk",
    formula="s(q, k) = q . k / d_k",
    source="Yang et al. 2022, arXiv:2203.03466, def. 4.1",
)
class Dk(Scaling):
    """The muP rule, for queries and keys that training has made alike: flatter than `sqrt_dk`."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = 1 / dims.d_k

    def query(self, q: Tensor) -> Tensor:
        return q * self.factor


@register(
    "learned",
    formula="s(q, k) = c q . k, c trained, at first 1 / sqrt(d_k)",
    source="Lee et al. 2021, arXiv:2112.13492, sec. 3.2 (learnable temperature)",
)
class Learned(Scaling):
    """One trained factor for each attention, which starts from the paper's."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = nn.Parameter(torch.full((1,), dims.d_k**-0.5))

    def query(self, q: Tensor) -> Tensor:
        return (q * self.factor).to(q.dtype)


@register(
    "qk_norm",
    formula="s(q, k) = g cos(q, k), g trained, at first log2(L^2 - L)",
    source="Henry et al. 2020, arXiv:2010.04245, sec. 3",
)
class QKNorm(Scaling):
    """Cosines times one trained factor for each attention; no score can exceed it.

    Args:
        dims: not used.
        typical_length: L, the length in tokens that 97.5% of the training sentences do not exceed;
            72 in the authors' setting for English to Vietnamese. It sets where the factor starts.
    """

    def __init__(self, dims: Dims, *, typical_length: TypicalLength = 72) -> None:
        super().__init__(dims)
        start = math.log2(typical_length**2 - typical_length)
        self.factor = nn.Parameter(torch.full((1,), start))

    def query(self, q: Tensor) -> Tensor:
        return (_unit(q) * self.factor).to(q.dtype)

    def key(self, k: Tensor) -> Tensor:
        return _unit(k).to(k.dtype)


@register(
    "rms_qk_norm",
    formula="s(q, k) = rms(q) . rms(k) / sqrt(d_k), rms(x) = gain x / sqrt(mean(x^2) + 1e-6)",
    source="Gemma Team 2025, arXiv:2503.19786, sec. 2 (QK-norm)",
)
class RMSQKNorm(Scaling):
    """RMSNorm of queries and of keys over d_k, with gains that all heads share, then `sqrt_dk`."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = dims.d_k**-0.5
        self.query_gain = nn.Parameter(torch.ones(dims.d_k))
        self.key_gain = nn.Parameter(torch.ones(dims.d_k))

    def query(self, q: Tensor) -> Tensor:
        return (_rms(q) * self.query_gain * self.factor).to(q.dtype)

    def key(self, k: Tensor) -> Tensor:
        return (_rms(k) * self.key_gain).to(k.dtype)


@register(
    "cosine",
    formula="s(q, k) = cos(q, k) / tau_h, tau_h trained, at first 0.1, never below 0.01",
    source="Liu et al. 2022, arXiv:2111.09883, sec. 3.2",
)
class Cosine(Scaling):
    """Cosines over one trained temperature for each head (Swin Transformer V2).

    What is trained is ln(1 / tau_h); below tau_h = 0.01 it gets no gradient.

    Args:
        dims: gives the number of heads.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.log_factor = nn.Parameter(torch.full((dims.n_heads,), math.log(_SHARPNESS)))

    def query(self, q: Tensor) -> Tensor:
        factor = self.log_factor.clamp(max=math.log(_SHARPEST)).exp()
        return (_unit(q) * factor[:, None, None]).to(q.dtype)

    def key(self, k: Tensor) -> Tensor:
        return _unit(k).to(k.dtype)


@register(
    "soft_cap",
    formula="s(q, k) = cap tanh(q . k / (cap sqrt(d_k)))",
    source="Gemma Team 2024, arXiv:2408.00118, sec. 2 (logit soft-capping)",
)
class SoftCap(Scaling):
    """As `sqrt_dk`, but no score leaves the range from -cap to cap.

    Args:
        dims: gives d_k.
        cap: the largest score; 50 in Gemma 2.
    """

    def __init__(self, dims: Dims, *, cap: PositiveFloat = 50.0) -> None:
        super().__init__(dims)
        self.factor = dims.d_k**-0.5
        self.cap = cap

    def query(self, q: Tensor) -> Tensor:
        return q * self.factor

    def scores(self, scores: Tensor) -> Tensor:
        return self.cap * torch.tanh(scores / self.cap)


def _unit(x: Tensor) -> Tensor:
    """Return vectors ``x`` (..., K) of length 1, in no less than single precision."""
    return nn.functional.normalize(_wide(x), dim=-1)


def _rms(x: Tensor) -> Tensor:
    """Return vectors ``x`` (..., K) of mean square 1, in no less than single precision."""
    x = _wide(x)
    return x * (x.square().mean(dim=-1, keepdim=True) + _EPS).rsqrt()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
