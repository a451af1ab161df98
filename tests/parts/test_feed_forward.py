"""Feed-forwards: each is its formula, and gates do not cost more than what they replace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.feed_forward import FeedForward, SwiGlu, TwoLayer
from ablate.registry import build, choose

DIMS = Dims.model_validate({"d_model": 32, "n_heads": 4, "max_len": 8})


def feed_forward(name: str, dims: Dims = DIMS, dropout: float = 0.0, **options: Any) -> FeedForward:
    torch.manual_seed(0)
    return build(FeedForward, choose(FeedForward, name, **options), dims, dropout)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "phi"), [("relu", F.relu), ("gelu", F.gelu)])
def test_two_layers_by_hand(name: str, phi: Any, x: Tensor) -> None:
    part = feed_forward(name, d_ff=48)
    assert isinstance(part, TwoLayer)
    w1, b1, w2, b2 = part.up.weight, part.up.bias, part.down.weight, part.down.bias
    torch.testing.assert_close(part(x), phi(x @ w1.T + b1) @ w2.T + b2)


def test_swiglu_by_hand(x: Tensor) -> None:
    part = feed_forward("swiglu", d_ff=48, bias=False)
    assert isinstance(part, SwiGlu)
    gate = x @ part.gate.weight.T
    hidden = gate * torch.sigmoid(gate) * (x @ part.up.weight.T)
    torch.testing.assert_close(part(x), hidden @ part.down.weight.T)


def test_relu_equals_two_convolutions_of_width_one(x: Tensor) -> None:
    part = feed_forward("relu", d_ff=48)
    assert isinstance(part, TwoLayer)
    up, down = nn.Conv1d(32, 48, 1), nn.Conv1d(48, 32, 1)
    for conv, linear in ((up, part.up), (down, part.down)):
        conv.load_state_dict({"weight": linear.weight[:, :, None], "bias": linear.bias})
    torch.testing.assert_close(part(x), down(up(x.mT).relu()).mT, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("d_ff", [None, 1536])
def test_swiglu_has_the_parameters_of_what_it_replaces(bias: bool, d_ff: int | None) -> None:
    dims = Dims.model_validate({"d_model": 512, "n_heads": 8, "max_len": 8})
    gated, plain = (
        sum(p.numel() for p in feed_forward(name, dims, d_ff=d_ff, bias=bias).parameters())
        for name in ("swiglu", "relu")
    )
    assert gated == pytest.approx(plain, rel=0.001)


def test_unmatched_swiglu_has_the_width_it_is_told() -> None:
    part = feed_forward("swiglu", d_ff=48, matched=False)
    assert isinstance(part, SwiGlu)
    assert part.up.out_features == 48


def test_the_default_width_is_four_times_the_model() -> None:
    part = feed_forward("relu")
    assert isinstance(part, TwoLayer)
    assert part.up.out_features == 128


@pytest.mark.parametrize("name", ["relu", "gelu", "swiglu"])
def test_dropout_acts_on_the_hidden_layer(name: str, x: Tensor) -> None:
    part = feed_forward(name, dropout=0.5)
    assert not torch.equal(part(x), part.eval()(x))
