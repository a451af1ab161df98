"""Scaling: how queries, keys and their dot products are scaled before the softmax.

B batch, T queries, S keys, H n_heads, G heads of keys, K d_k.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import AtLeastTwo, Dims, at_least_float32
from ablate.registry import AddedOption, Part, register

_EPS = 1e-6  # added to the mean square, under the root
_MAX_COSINE_FACTOR = 100.0  # 1 / 0.01
_INITIAL_COSINE_FACTOR = 10.0  # 1 / 0.1


class Scaling(nn.Module, Part, slot="scaling"):
    """The contract: three hooks around the dot product, which by default change nothing.

    `query` and `key` are applied right after the projection, before any rotation by position and
    before keys are cached.

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
    is_contract=True,
)
class NoScaling(Scaling):
    """Plain dot products."""


@register(
    "sqrt_dk",
    formula="s(q, k) = q . k / sqrt(d_k)",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.1",
)
class SqrtDk(Scaling):
    """Scores have unit variance if the elements of queries and keys have."""

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
class SqrtDmodel(SqrtDk):
    """With d_model = n_heads d_k its scores are the paper's over sqrt(n_heads)."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = dims.d_model**-0.5


@register(
    "dk", formula="s(q, k) = q . k / d_k", source="Yang et al. 2022, arXiv:2203.03466, def. 4.1"
)
class Dk(SqrtDk):
    """The muP rule, for queries and keys that become correlated in training."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.factor = 1 / dims.d_k


@register(
    "learned",
    formula="s(q, k) = c q . k, c trained, at first 1 / sqrt(d_k)",
    source="Lee et al. 2021, arXiv:2112.13492, sec. 3.3 (learnable temperature)",
)
class Learned(Scaling):
    """Trained factors of the scores, initialised to 1 / sqrt(d_k).

    Args:
        per_head: whether every head has its own factor, as in the paper, or all heads of an
            attention share one.
    """

    def __init__(
        self, dims: Dims, *, per_head: Annotated[bool, AddedOption(False)] = False
    ) -> None:
        super().__init__(dims)
        shape = (dims.n_heads, 1, 1) if per_head else (1,)
        self.factor = nn.Parameter(torch.full(shape, dims.d_k**-0.5))

    def query(self, q: Tensor) -> Tensor:
        return (q * self.factor).to(q.dtype)


@register(
    "qk_norm",
    formula="s(q, k) = g cos(q, k), g trained, at first log2(L^2 - L)",
    source="Henry et al. 2020, arXiv:2010.04245, sec. 3",
)
class QKNorm(Scaling):
    """Cosines times one trained factor per attention, the largest possible score.

    Args:
        typical_length: L, the length in tokens that 97.5% of the training sentences do not exceed;
            72 in the authors' setting for English to Vietnamese. It determines the initial factor.
    """

    def __init__(self, dims: Dims, *, typical_length: AtLeastTwo = 72) -> None:
        super().__init__(dims)
        initial = math.log2(typical_length**2 - typical_length)
        self.factor = nn.Parameter(torch.full((1,), initial))

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
    "layer_qk_norm",
    formula="s(q, k) = norm(q) . norm(k) / sqrt(d_k), norm(x) = gain (x - mean) / std + bias",
    source="Dehghani et al. 2023, arXiv:2302.05442, sec. 2 (QK normalisation); with a bias "
    "Persimmon-8B (Adept 2023)",
)
class LayerQKNorm(Scaling):
    """LayerNorm of queries and of keys over d_k, with gains that all heads share, then `sqrt_dk`.

    Args:
        bias: whether the two norms have a bias. Those of ViT-22B have none, and do not subtract
            the mean, as in `rms_qk_norm`.
    """

    def __init__(self, dims: Dims, *, bias: bool = True) -> None:
        super().__init__(dims)
        self.factor = dims.d_k**-0.5
        self.query_norm = nn.LayerNorm(dims.d_k, eps=_EPS, bias=bias)
        self.key_norm = nn.LayerNorm(dims.d_k, eps=_EPS, bias=bias)

    def query(self, q: Tensor) -> Tensor:
        return (self.query_norm(at_least_float32(q)) * self.factor).to(q.dtype)

    def key(self, k: Tensor) -> Tensor:
        return self.key_norm(at_least_float32(k)).to(k.dtype)


@register(
    "cosine",
    formula="s(q, k) = cos(q, k) / tau_h, tau_h trained, at first 0.1, never below 0.01",
    source="Liu et al. 2022, arXiv:2111.09883, sec. 3.2",
)
class Cosine(Scaling):
    """Cosines over one trained temperature for each head (Swin Transformer V2).

    The parameter is ln(1 / tau_h); where tau_h is below 0.01 it gets no gradient.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.log_factor = nn.Parameter(
            torch.full((dims.n_heads,), math.log(_INITIAL_COSINE_FACTOR))
        )

    def query(self, q: Tensor) -> Tensor:
        factor = self.log_factor.clamp(max=math.log(_MAX_COSINE_FACTOR)).exp()
        return (_unit(q) * factor[:, None, None]).to(q.dtype)

    def key(self, k: Tensor) -> Tensor:
        return _unit(k).to(k.dtype)


@register(
    "soft_cap",
    formula="s(q, k) = cap tanh(q . k / (cap sqrt(d_k)))",
    source="Gemma Team 2024, arXiv:2408.00118, sec. 2 (logit soft-capping)",
)
class SoftCap(SqrtDk):
    """As `sqrt_dk`, with scores between -cap and cap, before position biases are added.

    With residual: realformer, the scores of lower layers are also added after the cap.

    Args:
        cap: the largest score; 50 in Gemma 2.
    """

    def __init__(self, dims: Dims, *, cap: PositiveFloat = 50.0) -> None:
        super().__init__(dims)
        self.cap = cap

    def scores(self, scores: Tensor) -> Tensor:
        return self.cap * torch.tanh(scores / self.cap)


def _unit(x: Tensor) -> Tensor:
    """Return vectors ``x`` (..., K) of length 1, in single precision or better."""
    return nn.functional.normalize(at_least_float32(x), dim=-1)


def _rms(x: Tensor) -> Tensor:
    """Return vectors ``x`` (..., K) of mean square 1, in single precision or better."""
    x = at_least_float32(x)
    return x * (x.square().mean(dim=-1, keepdim=True) + _EPS).rsqrt()
