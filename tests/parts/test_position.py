"""Position encodings: the contract of all of them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

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


def hooks(position: Position, queries: Tensor, n_keys: int, layer: int = 1) -> list[Tensor]:
    """Return the outputs of all hooks for fixed inputs, with queries at some of ten positions."""
    generator = torch.Generator().manual_seed(1)
    device = queries.device

    def numbers(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(device)

    x, q = numbers(B, T, DIMS.d_model), numbers(B, H, T, K)
    weights = numbers(B, H, T, S)[..., :n_keys].softmax(dim=-1)
    x, q, weights = x[:, queries], q[:, :, queries], weights[:, :, queries]
    keys = torch.arange(n_keys, device=device)
    bias = position.bias(q, queries, keys, layer)
    values = position.values(weights, queries, keys, layer)
    shape = B, H, len(queries)
    return [
        position.embed(x, queries),
        position.rotate(q, queries),
        torch.zeros(*shape, n_keys) if bias is None else bias.expand(*shape, n_keys),
        torch.zeros(*shape, V) if values is None else values.expand(*shape, V),
    ]


@pytest.mark.parametrize("n_keys", [T, S])
def test_hooks_keep_their_shapes(position: Position, n_keys: int) -> None:
    shapes = [y.shape for y in hooks(position, torch.arange(T), n_keys)]
    assert shapes == [(B, T, DIMS.d_model), (B, H, T, K), (B, H, T, n_keys), (B, H, T, V)]


@pytest.mark.parametrize("n_keys", [T, S])
def test_one_token_is_treated_as_in_the_whole_sequence(position: Position, n_keys: int) -> None:
    whole = hooks(position, torch.arange(T), n_keys)
    single = [hooks(position, torch.tensor([t]), n_keys) for t in range(T)]
    for y, one_by_one, dim in zip(whole, zip(*single, strict=True), (1, 2, 2, 2), strict=True):
        torch.testing.assert_close(torch.cat(one_by_one, dim=dim), y, atol=1e-13, rtol=0)


def test_a_query_does_not_depend_on_other_queries(position: Position) -> None:
    chosen = torch.tensor([7, 2, 5])
    whole, some = hooks(position, torch.arange(T), T), hooks(position, chosen, T)
    for y, z, dim in zip(whole, some, (1, 2, 2, 2), strict=True):
        torch.testing.assert_close(z, y.index_select(dim, chosen), atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", sorted(slots()["position"]))
@pytest.mark.parametrize("is_training", [True, False])
def test_no_value_is_read_on_the_host(name: str, *, is_training: bool) -> None:
    with torch.device("meta"):
        part = build(Position, choose(Position, name), DIMS, stack_info("encoder")).double()
    where = torch.arange(T, device="meta")
    x, q = torch.empty(B, T, 32, device="meta"), torch.empty(B, H, T, K, device="meta")
    part.train(is_training)
    assert part.embed(x, where).shape == x.shape
    assert part.rotate(q, where).shape == q.shape
    q = q.double()
    bias = part.bias(q, where, where, 0)
    assert bias is None or bias.expand(B, H, T, T).is_meta
    added = part.values(q[..., :1].expand(B, H, T, T), where, where, 0)
    assert added is None or added.shape == (B, H, T, V)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_keep_their_type(position: Position, dtype: torch.dtype) -> None:
    part = position.float() if dtype is torch.bfloat16 else position.to(dtype)
    where = torch.arange(T)
    assert part.rotate(torch.randn(B, H, T, K, dtype=dtype), where).dtype is dtype
    if dtype is not torch.bfloat16:  # the stream is never narrower than its parameters
        assert part.embed(torch.randn(B, T, DIMS.d_model, dtype=dtype), where).dtype is dtype


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


def test_parameters_may_be_given_from_outside(position: Position) -> None:
    x = torch.randn(B, T, DIMS.d_model, dtype=torch.float64)
    parameters = {name: p.detach() + 0.5 for name, p in position.named_parameters()}
    outside = functional_call(_All(position), {f"part.{n}": p for n, p in parameters.items()}, (x,))
    with torch.no_grad():
        for name, parameter in position.named_parameters():
            parameter.copy_(parameters[name])
    torch.testing.assert_close(outside, _All(position)(x), atol=0, rtol=0)


class _All(torch.nn.Module):
    """Adds up all hooks of an encoding."""

    def __init__(self, part: Position) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        where = torch.arange(T)
        q = x.unflatten(-1, (H, K)).transpose(1, 2)
        bias = self.part.bias(self.part.rotate(q, where), where, where, 0)
        weights = (
            torch.zeros(B, H, T, T, dtype=x.dtype) if bias is None else bias.expand(B, H, T, T)
        )
        added = self.part.values(weights, where, where, 0)
        total = self.part.embed(x, where).sum() + weights.sum()
        return total if added is None else total + added.sum()


def test_every_trained_number_of_an_encoding_is_reached(position: Position) -> None:
    x = torch.randn(B, T, DIMS.d_model, dtype=torch.float64)
    if not list(position.parameters()):
        return
    _All(position)(x).backward()
    for name, parameter in position.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize("name", ["none", "sinusoidal", "shifted", "alibi", "rotary"])
def test_fixed_encodings_have_nothing_to_train_and_nothing_to_save(name: str) -> None:
    part = build(Position, choose(Position, name), DIMS, stack_info("encoder"))
    assert not list(part.parameters())
    assert not part.state_dict()


def test_nothing_is_saved_but_what_is_trained(position: Position) -> None:
    assert set(position.state_dict()) == {name for name, _ in position.named_parameters()}
