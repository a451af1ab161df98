"""Rotary encodings: positions as angles.

B batch, T tokens, H n_heads, K d_k.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from ablate.parts.dims import AtLeastTwo, Dims, Fraction, StackInfo
from ablate.parts.position.absolute import Layout, NoPosition
from ablate.parts.position.contract import Position
from ablate.registry import register

_FEW_TURNS, _MANY_TURNS = 1.0, 32.0  # alpha and beta of YaRN


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
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__(dims, stack_info)
        if dims.d_k % 2:
            raise ValueError(
                f"rotary rotates pairs of dimensions, so d_k ({dims.d_k}) must be even; change "
                "d_model or n_heads, or give d_k too"
            )
        self.layout = layout
        self.fill_tables(dims, _speeds(dims, base))

    def fill_tables(self, dims: Dims, speeds: Tensor, factor: float = 1.0) -> None:
        """Make tables of cosines and sines, times ``factor``; pairs have ``speeds`` (K / 2,)."""
        angle = torch.outer(torch.arange(dims.max_len, dtype=torch.float64), speeds)
        for name, table in (("cos", angle.cos()), ("sin", angle.sin())):
            table = (factor * table).to(torch.get_default_dtype())
            self.register_buffer(name, table, persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.cos[positions], self.sin[positions]  # (T, K / 2)
        if self.layout == "interleaved":
            first, second = x.unflatten(-1, (-1, 2)).unbind(dim=-1)  # (B, H, T, K / 2)
            rotated = torch.stack(_rotate(first, second, cos, sin), dim=-1).flatten(-2)
        else:
            first, second = x.chunk(2, dim=-1)
            rotated = torch.cat(_rotate(first, second, cos, sin), dim=-1)
        return rotated.to(x.dtype)


@register(
    "partial_rotary",
    formula="as rotary for the first share of the d_k dimensions; the others stay as they are",
    source="Black et al. 2022, arXiv:2204.06745, sec. 2.1 (GPT-NeoX-20B)",
)
class PartialRotary(Rotary):
    """Rotate a part of each head's dimensions, so that the others compare content alone.

    Args:
        share: share of the dimensions that are rotated, rounded to pairs, at least one; a quarter
            in GPT-NeoX, a half in ChatGLM.
        base: as in `rotary`, for the dimensions that are rotated.
        layout: as in `rotary`, among those dimensions.

    Raises:
        ValueError: if d_k is 1.
    """

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        share: Fraction = 0.5,
        base: PositiveFloat = 10_000.0,
        layout: Layout = "interleaved",
    ) -> None:
        if dims.d_k < 2:
            raise ValueError(
                f"partial_rotary rotates pairs of dimensions, so d_k ({dims.d_k}) must be at least "
                "2; change d_model or n_heads, or give d_k too"
            )
        self.width = 2 * max(1, round(share * dims.d_k / 2))
        rotated = dims.model_copy(update={"d_k": self.width})
        super().__init__(rotated, stack_info, base=base, layout=layout)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        rotated, others = x[..., : self.width], x[..., self.width :]
        return torch.cat((super().rotate(rotated, positions), others), dim=-1)


@register(
    "yarn",
    formula="as rotary with speeds w ((1 - c) / factor + c), c = clip((L w / 2 pi - 1) / 31, 0, 1),"
    " and q and k times 0.1 ln(factor) + 1",
    source="Peng et al. 2023, arXiv:2309.00071, sec. 3.2 to 3.4 (YaRN)",
)
class Yarn(Rotary):
    """Rotary whose pairs are slowed down for longer sentences, slow ones more than fast ones.

    A pair that makes more than 32 turns in L tokens keeps its speed w, which needs an L above 201
    (64 pi): at the default, the fastest pair has 0.47 w. One that makes less than one turn is
    slowed down by the factor, and scores are multiplied by (0.1 ln factor + 1)^2. Between them the
    speed is linear in the number of turns, as in the paper, sec. 3.2; the authors' code and
    transformers' rotary embeddings make it linear in the number of the pair, from the one with 32
    turns, rounded down, to the one with 1, rounded up. At the default and d_k 64 they leave the
    fastest pair at w. The paper fine-tunes models that were trained with at most L tokens; here a
    model is trained with it.

    Args:
        factor: the length of the longest sentences over L; 1 is `rotary`.
        length: L, in tokens.
        base: as in `rotary`.
        layout: as in `rotary`.
    """

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        factor: PositiveFloat = 4.0,
        length: Annotated[int, Field(ge=8)] = 64,
        base: PositiveFloat = 10_000.0,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__(dims, stack_info, base=base, layout=layout)
        speeds = _speeds(dims, base)
        ramp = (length * speeds / (2 * math.pi) - _FEW_TURNS) / (_MANY_TURNS - _FEW_TURNS)
        ramp = ramp.clamp(0, 1)
        speeds = speeds * ((1 - ramp) / factor + ramp)
        self.fill_tables(dims, speeds, factor=0.1 * math.log(factor) + 1)


@register(
    "rotary_nope",
    formula="layer l = 1, 2, ...: none if every divides l, else rotary",
    source="Yang et al. 2025, arXiv:2501.18795, sec. 3 (RNoPE)",
)
class RotaryNope(Rotary):
    """Rotary; every n-th layer has no position.

    Args:
        every: n; 4 in Llama 4 and SmolLM3. If a stack has fewer layers, all of them rotate, as
            with `rotary`.
        base: as in `rotary`.
        layout: as in `rotary`.
    """

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        every: AtLeastTwo = 2,
        base: PositiveFloat = 10_000.0,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__(dims, stack_info, base=base, layout=layout)
        self.every = every
        self.no_position = NoPosition(dims, stack_info)

    def at_layer(self, layer: int) -> Position:
        return self if (layer + 1) % self.every else self.no_position


def _speeds(dims: Dims, base: float) -> Tensor:
    """Return the radians per token of each pair, in double precision, (K / 2,)."""
    return base ** -(torch.arange(0, dims.d_k, 2, dtype=torch.float64) / dims.d_k)


def _rotate(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, first * sin + second * cos
