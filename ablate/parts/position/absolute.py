"""Encodings of the absolute position of a token, added to its embedding.

B batch, T tokens, D d_model.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import Dims, StackInfo, StandardDeviation
from ablate.parts.position.contract import Position
from ablate.registry import AddedOption, register

Layout = Literal["interleaved", "halves"]


@register(
    "none",
    formula="x_p = e_p",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5, left out",
    is_contract=True,
)
class NoPosition(Position):
    """No position information: the encoder sees a bag of tokens."""


@register(
    "sinusoidal",
    formula="x_p = e_p + PE(p); PE(p, 2k) = sin(p w_k), PE(p, 2k+1) = cos(p w_k)",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5",
)
class Sinusoidal(Position):
    """Add sine and cosine of the position, with one frequency w_k per pair k of dimensions.

    The table is computed in double precision and rounded once.

    Args:
        exponent: how the frequencies fall with k = 0, 1, ..., D/2 - 1. ``paper``:
            w_k = base^(-2k / D). ``literal_2i``: base^(-4k / D), from reading the paper's i as
            the index of a dimension, not of a pair; half of the code is then nearly constant.
            ``t2t``: base^(-k / (D/2 - 1)), as in the code of tensor2tensor and fairseq.
        layout: ``interleaved``: sin, cos, sin, cos, ... as in the paper; ``halves``: all sines,
            then all cosines, as in tensor2tensor. One is a permutation of the other. An odd D lacks
            the last cosine; ``padded_halves``, for an odd D, is the halves of width D - 1 and a
            zero, as in tensor2tensor and fairseq.
        base: the wavelengths range from 2 pi to about 2 pi * base tokens; with ``literal_2i`` to
            about 2 pi * base^2.
        first: p of the first token; 2 in fairseq, where row 1 belongs to padding.

    Raises:
        ValueError: if the layout is ``padded_halves`` and D is even.
    """

    table: Tensor  # (max_len, D)

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        exponent: Literal["paper", "literal_2i", "t2t"] = "paper",
        layout: Literal["interleaved", "halves", "padded_halves"] = "interleaved",
        base: PositiveFloat = 10_000.0,
        first: Annotated[NonNegativeInt, AddedOption(0)] = 0,
    ) -> None:
        super().__init__(dims, stack_info)
        d_model = dims.d_model
        if layout == "padded_halves":
            if d_model % 2 == 0:
                raise ValueError(f"padded_halves needs an odd d_model, not {d_model}; use halves")
            d_model, layout = d_model - 1, "halves"
        share = {
            "paper": 2 * _pairs(d_model) / d_model,
            "literal_2i": 4 * _pairs(d_model) / d_model,
            "t2t": _pairs(d_model) / max(d_model / 2 - 1, 1),
        }[exponent]
        table = _table(first + dims.max_len, base**-share, d_model, layout)[first:]
        table = nn.functional.pad(table, (0, dims.d_model - d_model))
        self.register_buffer("table", table, persistent=False)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions].to(x.dtype)


@register(
    "learned",
    formula="x_p = e_p + P_p, P trained",
    source="Gehring et al. 2017, arXiv:1705.03122, sec. 3.1",
)
class Learned(Position):
    """Add one trained vector per position, for positions below max_len.

    Args:
        init_std: standard deviation of the normal distribution of the initial vectors.
    """

    def __init__(
        self, dims: Dims, stack_info: StackInfo, *, init_std: StandardDeviation = "inv_sqrt_d"
    ) -> None:
        super().__init__(dims, stack_info)
        self.table = nn.Parameter(torch.empty(dims.max_len, dims.d_model))
        nn.init.normal_(self.table, std=dims.std(init_std))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


@register(
    "learned_sinusoidal",
    formula="x_p = e_p + PE(p) as in sinusoidal, ln w_k trained, at first -(2k / D) ln base",
    source="Wang et al. 2021, On Position Embeddings in BERT, ICLR (learnable sinusoidal)",
)
class LearnedSinusoidal(Position):
    """Sinusoids whose frequencies are trained and start as the paper's.

    The parameters are the logarithms of the frequencies, so that every frequency stays positive and
    a step changes high and low frequencies by the same ratio. The layout is interleaved.

    Args:
        base: of the initial frequencies, as in `sinusoidal`.
    """

    def __init__(
        self, dims: Dims, stack_info: StackInfo, *, base: PositiveFloat = 10_000.0
    ) -> None:
        super().__init__(dims, stack_info)
        initial = _pairs(dims.d_model) * (-2 * math.log(base) / dims.d_model)
        self.log_frequencies = nn.Parameter(initial.to(torch.get_default_dtype()))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None] * self.log_frequencies.exp()  # (T, D / 2)
        return x + _sines_and_cosines(angle, x.size(-1), "interleaved").to(x.dtype)


@register(
    "shifted",
    formula="x_p = e_p + PE(p + s), s uniform in 0 ... max_shift while training, else 0",
    source="Kiyono et al. 2021, arXiv:2109.05644, sec. 3",
)
class Shifted(Position):
    """Sinusoids with a random offset in training (SHAPE), so that only distances are informative.

    The offset is drawn for every sequence of a batch, independently for source and target. In
    evaluation it is 0, where the authors' code has max_shift.

    Args:
        max_shift: the largest shift, in tokens; 500 in the paper.
        base: of the frequencies, as in `sinusoidal`.
    """

    table: Tensor  # (max_len + max_shift, D)

    def __init__(
        self,
        dims: Dims,
        stack_info: StackInfo,
        *,
        max_shift: PositiveInt = 500,
        base: PositiveFloat = 10_000.0,
    ) -> None:
        super().__init__(dims, stack_info)
        self.max_shift = max_shift
        frequency = base ** -(2 * _pairs(dims.d_model) / dims.d_model)
        table = _table(dims.max_len + max_shift, frequency, dims.d_model, "interleaved")
        self.register_buffer("table", table, persistent=False)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.training:
            shift = torch.randint(self.max_shift + 1, (x.size(0), 1), device=positions.device)
            positions = positions + shift  # (B, T)
        return x + self.table[positions].to(x.dtype)


def _pairs(width: int) -> Tensor:
    """Return the numbers 0, 1, ... of the pairs of dimensions; the last may lack its second."""
    return torch.arange((width + 1) // 2, dtype=torch.float64)


def _table(n_positions: int, frequency: Tensor, width: int, layout: Layout) -> Tensor:
    angle = torch.outer(torch.arange(n_positions, dtype=torch.float64), frequency)
    return _sines_and_cosines(angle, width, layout).to(torch.get_default_dtype())


def _sines_and_cosines(angle: Tensor, width: int, layout: Layout) -> Tensor:
    """Return sines and cosines (..., width) of ``angle`` (..., width / 2).

    An odd width lacks the last cosine.
    """
    sin, cos = angle.sin(), angle.cos()
    if layout == "interleaved":
        return torch.stack((sin, cos), dim=-1).flatten(-2)[..., :width]
    return torch.cat((sin, cos[..., : width // 2]), dim=-1)
