"""Rotary encoding: positions as angles.

B batch, T tokens, H n_heads, K d_k.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from ablate.parts.dims import Dims, StackInfo
from ablate.parts.position.contract import Position
from ablate.registry import register


@register(
    "rotary",
    formula="pair k of q and k at p is rotated by p base^(-2k / d_k); s_ij depends on i - j alone",
    source="Su et al. 2021, arXiv:2104.09864, sec. 3.2.2",
)
class Rotary(Position):
    """Rotate each pair of query and key dimensions by an angle proportional to the position.

    The score of a query and a key then depends on their distance alone. The angles are computed in
    double precision and their sines and cosines rounded once.

    Args:
        dims: gives d_k, which must be even, and the number of positions, max_len.
        stack_info: not used.
        base: the last pair is rotated by about 1 / base radians per token.
        layout: which dimensions are a pair. ``interleaved``: neighbours, as in the paper;
            ``halves``: one of each half, as in GPT-NeoX and in Hugging Face's library.

    Raises:
        ValueError: if d_k is odd.
    """

    cos: Tensor  # (max_len, K / 2)
    sin: Tensor  # (max_len, K / 2)

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        base: PositiveFloat = 10_000.0,
        layout: Literal["interleaved", "halves"] = "interleaved",
    ) -> None:
        super().__init__(dims, stack_info)
        if dims.d_k % 2:
            raise ValueError(
                f"rotary rotates pairs of dimensions, so d_k ({dims.d_k}) must be even; change "
                "d_model or n_heads, or give d_k too"
            )
        self.layout = layout
        share = torch.arange(0, dims.d_k, 2, dtype=torch.float64) / dims.d_k
        angle = torch.outer(torch.arange(dims.max_len, dtype=torch.float64), base**-share)
        for name, table in (("cos", angle.cos()), ("sin", angle.sin())):
            self.register_buffer(name, table.to(torch.get_default_dtype()), persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.cos[positions], self.sin[positions]  # (T, K / 2)
        if self.layout == "interleaved":
            first, second = x.unflatten(-1, (-1, 2)).unbind(dim=-1)  # (B, H, T, K / 2)
            rotated = torch.stack(_rotate(first, second, cos, sin), dim=-1).flatten(-2)
        else:
            first, second = x.chunk(2, dim=-1)
            rotated = torch.cat(_rotate(first, second, cos, sin), dim=-1)
        return rotated.to(x.dtype)


def _rotate(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, first * sin + second * cos
