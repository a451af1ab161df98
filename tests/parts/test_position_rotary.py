"""Rotary encoding, against the multiplication of complex numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.parts.dims import Dims, StackInfo
from ablate.parts.position import Position
from ablate.registry import build, choose

pytestmark = pytest.mark.usefixtures("in_double")

B, H, T = 2, 3, 9
LAYOUTS = ["interleaved", "halves"]


def make(d_k: int = 6, max_len: int = 64, **options: Any) -> Position:
    dims = Dims.model_validate({"d_model": 12, "n_heads": H, "max_len": max_len, "d_k": d_k})
    stack_info = StackInfo(side="encoder", n_encoder_layers=1, n_decoder_layers=1)
    return build(Position, choose(Position, "rotary", **options), dims, stack_info)


def by_complex_numbers(x: Tensor, positions: Tensor, base: float, layout: str) -> Tensor:
    """Turn pair k by p base^(-2k / K), as a product with e^(i angle)."""
    d_k = x.size(-1)
    even, odd = (0, 1) if layout == "interleaved" else (0, d_k // 2)
    step = 2 if layout == "interleaved" else 1
    turned = torch.empty_like(x)
    for k in range(d_k // 2):
        one, other = even + step * k, odd + step * k
        number = torch.complex(x[..., one], x[..., other])
        angle = torch.tensor([p * base ** (-2 * k / d_k) for p in positions.tolist()])
        number = number * torch.exp(1j * angle)
        turned[..., one], turned[..., other] = number.real, number.imag
    return turned


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10_000.0, 50.0])
@pytest.mark.parametrize("d_k", [2, 4, 6, 10])
@pytest.mark.parametrize("positions", [list(range(T)), [63, 0, 7]])
def test_pairs_are_rotated_like_complex_numbers(
    positions: list[int], d_k: int, base: float, layout: str
) -> None:
    part, where = make(d_k, base=base, layout=layout), torch.tensor(positions)
    x = torch.randn(B, H, len(positions), d_k)
    expected = by_complex_numbers(x, where, base, layout)
    torch.testing.assert_close(part.rotate(x, where), expected, atol=1e-13, rtol=0)


def test_angles_are_rounded_once_and_not_on_the_way() -> None:
    torch.set_default_dtype(torch.float32)
    part = make(6, max_len=30_000)
    x = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]).expand(1, 1, 1, 6)
    turned = part.rotate(x, torch.tensor([29_999]))
    assert turned.dtype is torch.float32
    angles = [29_999 * 10_000 ** (-k / 3) for k in range(3)]
    by_hand = [f(a) for a in angles for f in (math.cos, math.sin)]
    torch.testing.assert_close(turned.flatten(), torch.tensor(by_hand), atol=6e-8, rtol=0)


def test_half_precision_is_rotated_in_single() -> None:
    torch.set_default_dtype(torch.float32)
    part, x = make(64, max_len=64), torch.randn(B, H, T, 64).bfloat16()
    where = torch.arange(T)
    exact = by_complex_numbers(x.double(), where, 10_000.0, "interleaved").bfloat16()
    is_same = part.rotate(x, where) == exact
    assert is_same.double().mean() > 0.999


def of(name: str, d_k: int = 8, **options: Any) -> Position:
    dims = Dims.model_validate({"d_model": 12, "n_heads": H, "max_len": 64, "d_k": d_k})
    stack_info = StackInfo(side="encoder", n_encoder_layers=4, n_decoder_layers=1)
    return build(Position, choose(Position, name, **options), dims, stack_info)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("share", "width"), [(0.25, 2), (0.5, 4), (0.7, 6), (0.01, 2)])
def test_partial_rotary_rotates_the_first_dimensions_alone(
    share: float, width: int, layout: str
) -> None:
    part, x, where = of("partial_rotary", share=share, layout=layout), torch.randn(B, H, T, 8), 3
    positions = torch.arange(T) + where
    turned = by_complex_numbers(x[..., :width], positions, 10_000.0, layout)
    expected = torch.cat((turned, x[..., width:]), dim=-1)
    torch.testing.assert_close(part.rotate(x, positions), expected, atol=1e-13, rtol=0)


def test_partial_rotary_rotates_one_pair_at_least() -> None:
    x, positions = torch.randn(B, H, T, 2), torch.arange(T)
    dims = Dims.model_validate({"d_model": 6, "n_heads": H, "max_len": 64})
    stack_info = StackInfo(side="encoder", n_encoder_layers=1, n_decoder_layers=1)
    part = build(Position, choose(Position, "partial_rotary", share=0.25), dims, stack_info)
    expected = by_complex_numbers(x, positions, 10_000.0, "interleaved")
    torch.testing.assert_close(part.rotate(x, positions), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize(("factor", "length", "base"), [(4.0, 64, 1e4), (8.0, 300, 500.0)])
def test_yarn_by_complex_numbers(factor: float, length: int, base: float) -> None:
    """Wavelengths above L are stretched, those below L / 32 kept, others between."""
    part, x = of("yarn", factor=factor, length=length, base=base), torch.randn(B, H, T, 8)
    expected, kinds = torch.empty_like(x), set()
    for k in range(4):
        wavelength = 2 * math.pi * base ** (2 * k / 8)
        turns = length / wavelength
        ramp = 0.0 if turns < 1 else 1.0 if turns > 32 else (turns - 1) / 31
        kinds.add(min(1, ramp) if ramp in (0.0, 1.0) else 0.5)
        speed = (1 - ramp) * base ** (-2 * k / 8) / factor + ramp * base ** (-2 * k / 8)
        number = torch.complex(x[..., 2 * k], x[..., 2 * k + 1])
        number = number * torch.exp(1j * speed * torch.arange(T)) * (0.1 * math.log(factor) + 1)
        expected[..., 2 * k], expected[..., 2 * k + 1] = number.real, number.imag
    assert len(kinds) > 1
    torch.testing.assert_close(part.rotate(x, torch.arange(T)), expected, atol=1e-13, rtol=0)


def test_yarn_with_a_factor_of_one_is_rotary() -> None:
    x, where = torch.randn(B, H, T, 8), torch.arange(T)
    ours, plain = of("yarn", factor=1.0), of("rotary")
    torch.testing.assert_close(ours.rotate(x, where), plain.rotate(x, where), atol=1e-13, rtol=0)


@pytest.mark.parametrize("every", [2, 3])
def test_rotary_nope_has_layers_without_positions(every: int) -> None:
    part, plain = of("rotary_nope", every=every), of("rotary")
    x, where = torch.randn(B, H, T, 8), torch.arange(T)
    for layer in range(6):
        expected = x if layer in range(every - 1, 6, every) else plain.rotate(x, where)
        assert torch.equal(part.at_layer(layer).rotate(x, where), expected), layer
