"""Position encodings: the contract of all of them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from ablate.parts.attention import Attention, AttentionContext
from ablate.parts.dims import Dims, Dropout, Side, StackInfo
from ablate.parts.position import Position
from ablate.parts.scaling import Scaling
from ablate.registry import build, choose, slots

DIMS = Dims.model_validate({"d_model": 32, "n_heads": 4, "max_len": 64, "d_v": 6})
B, H, T, S, K, V = 2, DIMS.n_heads, 10, 13, DIMS.d_k, DIMS.d_v
SIDES: tuple[Side, Side] = ("encoder", "decoder")


def stack_info(side: Side) -> StackInfo:
    return StackInfo(side=side, n_encoder_layers=2, n_decoder_layers=3)


@pytest.fixture(
    params=product(sorted(slots()["position"]), SIDES), ids=lambda which: "-".join(which)
)
def position(request: pytest.FixtureRequest) -> Position:
    """Each registered encoding on each side."""
    name, side = request.param
    torch.manual_seed(0)
    return build(Position, choose(Position, name), DIMS, stack_info(side)).double().eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_keep_their_type(position: Position, dtype: torch.dtype) -> None:
    part = position.float() if dtype is torch.bfloat16 else position.to(dtype)
    where = torch.arange(T)
    assert part.rotate(torch.randn(B, H, T, K, dtype=dtype), where).dtype is dtype
    if dtype is not torch.bfloat16:  # the stream is never narrower than its parameters
        assert part.embed(torch.randn(B, T, DIMS.d_model, dtype=dtype), where).dtype is dtype


def test_weights_alone_are_saved(position: Position) -> None:
    assert {*position.state_dict()} == {name for name, _ in position.named_parameters()}


def test_bf16_comes_near_to_single_precision(position: Position) -> None:
    part = position.float()
    scaling = build(Scaling, choose(Scaling, "sqrt_dk"), DIMS)
    attention = build(Attention, choose(Attention, "full"), DIMS, scaling, Dropout())
    x, where = torch.randn(B, T, DIMS.d_model), torch.arange(T)
    context = AttentionContext(torch.ones(T, T, dtype=torch.bool).tril(), where, where, part)
    expected = attention(part.embed(x, where), context)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = attention(part.embed(x, where), context)
    assert rounded.dtype is torch.bfloat16
    torch.testing.assert_close(rounded.float(), expected, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("name", ["none", "sinusoidal", "shifted", "alibi", "rotary"])
def test_fixed_encodings_have_nothing_to_train_and_nothing_to_save(name: str) -> None:
    part = build(Position, choose(Position, name), DIMS, stack_info("encoder"))
    assert not list(part.parameters())
    assert not part.state_dict()
