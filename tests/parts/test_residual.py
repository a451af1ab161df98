"""Wirings and norms: each is its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.parts.dims import Dims, Place
from ablate.parts.norm import Norm
from ablate.parts.residual import Residual
from ablate.registry import build, choose, slots

D = 8
DIMS = Dims.model_validate({"d_model": D, "n_heads": 2, "max_len": 4})
PLACE = Place(
    side="encoder", layer=0, n_layers=2, n_sublayers=2, n_encoder_layers=2, n_decoder_layers=2
)


def norm(name: str = "layer", **options: Any) -> Norm:
    return build(Norm, choose(Norm, name, **options), DIMS)


def wiring(name: str, dropout: float = 0.0, **options: Any) -> Residual:
    return build(Residual, choose(Residual, name, **options), PLACE, norm, dropout)


def first(x: Tensor) -> Tensor:
    return x.roll(1, dims=-1)


def second(x: Tensor) -> Tensor:
    return 2 * x.abs()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 4, D, generator=torch.Generator().manual_seed(0))


def test_post_is_norm_of_the_sum(x: Tensor) -> None:
    ln = nn.LayerNorm(D)
    y = ln(x + first(x))
    torch.testing.assert_close(wiring("post")(x, first, second), ln(y + second(y)))


def test_pre_is_sum_with_the_normed(x: Tensor) -> None:
    ln = nn.LayerNorm(D)
    y = x + first(ln(x))
    torch.testing.assert_close(wiring("pre")(x, first, second), y + second(ln(y)))


@pytest.mark.parametrize(
    ("name", "options", "is_closed"),
    [
        ("post", {}, False),
        ("post", {"final_norm": True}, True),
        ("pre", {}, True),
        ("pre", {"final_norm": False}, False),
        ("post_dropout_last", {}, False),
    ],
)
def test_what_a_stack_ends_in(name: str, options: dict[str, bool], is_closed: bool) -> None:
    assert isinstance(wiring(name, **options).closing(norm), Norm) == is_closed


def test_post_leaves_unit_variance(x: Tensor) -> None:
    y = wiring("post")(x, first, second)
    torch.testing.assert_close(y.mean(-1), torch.zeros(3, 4), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.var(-1, unbiased=False), torch.ones(3, 4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", sorted(slots()["residual"]))
def test_dropout_spares_the_stream_unless_it_comes_last(name: str, x: Tensor) -> None:
    """With a norm that does nothing and a branch of zeros, only the stream is left."""
    layer = build(Residual, choose(Residual, name), PLACE, lambda: norm("none"), 0.5).train()
    torch.manual_seed(0)
    y = layer(x, torch.zeros_like, torch.zeros_like)
    assert torch.equal(y, x) == (name != "post_dropout_last")


def test_dropout_last_scales_what_it_keeps(x: Tensor) -> None:
    torch.manual_seed(0)
    layer = build(Residual, choose(Residual, "post_dropout_last"), PLACE, lambda: norm("none"), 0.5)
    y = layer(x, torch.zeros_like, torch.zeros_like)
    kept = y != 0
    torch.testing.assert_close(y[kept], 4 * x[kept])  # twice 1 / (1 - 0.5)


def test_layer_norm_by_hand(x: Tensor) -> None:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    torch.testing.assert_close(norm("layer", eps=0.3)(x), (x - mean) / (var + 0.3).sqrt())


def test_rms_norm_by_hand(x: Tensor) -> None:
    mean_square = x.square().mean(-1, keepdim=True)
    torch.testing.assert_close(norm("rms", eps=0.3)(x), x / (mean_square + 0.3).sqrt())


def test_no_norm_is_the_identity(x: Tensor) -> None:
    assert norm("none")(x) is x


@pytest.mark.parametrize(("name", "n"), [("layer", 2 * D), ("rms", D), ("none", 0)])
def test_parameters_of_norms(name: str, n: int) -> None:
    assert sum(p.numel() for p in norm(name).parameters()) == n
    if name == "layer":
        assert sum(p.numel() for p in norm(name, bias=False).parameters()) == D
