"""Position encodings: how the model learns where a token stands.

B batch, T tokens, S keys, D d_model, H n_heads, K d_k. Positions count from 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import Dims, StandardDeviation
from ablate.registry import Part, register


class Position(nn.Module, Part, slot="position"):
    """The contract. An encoding overrides the hooks it needs; the others change nothing.

    Every hook is told the positions as a tensor, so that one token at position 7 is treated
    as the eighth token of a whole sequence is.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change token embeddings ``x`` (B, T, D) that stand at ``positions`` (T,)."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change queries or keys ``x`` (B, H, T, K) before their dot product."""
        return x

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Return what to add to the scores, (H, T, S), of positions (T,) and (S,), or None."""
        return None


@register("none", source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5, left out")
class NoPosition(Position):
    """No position information: the encoder sees a bag of tokens."""


@register("sinusoidal", source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5")
class Sinusoidal(Position):
    """Add sin(p w_k) and cos(p w_k) of the position p, with one frequency w_k per pair k.

    The table is computed in double precision and rounded once.

    Args:
        dims: gives the width D and the number of rows, max_len.
        exponent: how the frequencies fall with k = 0, 1, ..., D/2 - 1. ``paper``:
            w_k = base^(-2k / D). ``literal_2i``: base^(-4k / D), from reading the paper's i as
            the index of a dimension, not of a pair; half of the code is then nearly constant.
            ``t2t``: base^(-k / (D/2 - 1)), the code of tensor2tensor and fairseq.
        layout: ``interleaved``: sin, cos, sin, cos, ... as in the paper; ``halves``: all sines,
            then all cosines, as in tensor2tensor. A permutation, no more.
        base: the wavelengths reach from 2 pi to about 2 pi * base tokens.
    """

    table: Tensor  # (max_len, D)

    def __init__(
        self,
        dims: Dims,
        *,
        exponent: Literal["paper", "literal_2i", "t2t"] = "paper",
        layout: Literal["interleaved", "halves"] = "interleaved",
        base: PositiveFloat = 10_000.0,
    ) -> None:
        super().__init__(dims)
        d_model = dims.d_model
        pair = torch.arange((d_model + 1) // 2, dtype=torch.float64)
        share = {
            "paper": 2 * pair / d_model,
            "literal_2i": 4 * pair / d_model,
            "t2t": pair / max(d_model / 2 - 1, 1),
        }[exponent]
        angle = torch.outer(torch.arange(dims.max_len, dtype=torch.float64), base**-share)
        if layout == "interleaved":
            table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[:, :d_model]
        else:
            table = torch.cat((angle.sin(), angle.cos()[:, : d_model // 2]), dim=-1)
        self.register_buffer("table", table.to(torch.get_default_dtype()), persistent=False)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions].to(x.dtype)


@register("learned", source="Gehring et al. 2017, arXiv:1705.03122, sec. 3.1")
class Learned(Position):
    """Add one trained vector per position; positions past max_len do not exist.

    Args:
        dims: gives the width D and the number of positions, max_len.
        init_std: of the normal the vectors start from.
    """

    def __init__(self, dims: Dims, *, init_std: StandardDeviation = "inv_sqrt_d") -> None:
        super().__init__(dims)
        self.table = nn.Parameter(torch.empty(dims.max_len, dims.d_model))
        nn.init.normal_(self.table, std=dims.std(init_std))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]
