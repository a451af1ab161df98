"""The differences between attentions: shared projections, and mixed or scaled heads."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ablate.parts.attention import Attention, AttentionContext
from ablate.parts.dims import Dims, Dropout, StackInfo
from ablate.parts.position import Position
from ablate.parts.scaling import Scaling
from ablate.registry import RefusedError, build, choose
from tests.parts.random_numbers import numbers

B, T, S = 2, 5, 7
assert_near = functools.partial(torch.testing.assert_close, atol=1e-12, rtol=0)


def dims(**changes: int) -> Dims:
    return Dims.model_validate({"d_model": 24, "n_heads": 4, "max_len": 16} | changes)


def attention(
    name: str, scaling: str = "sqrt_dk", d: Dims | None = None, **options: Any
) -> Attention:
    d = d or dims()
    torch.manual_seed(0)
    part = build(Scaling, choose(Scaling, scaling), d)
    return build(Attention, choose(Attention, name, **options), d, part, Dropout()).double()


X, MEMORY = numbers(B, T, 24), numbers(B, S, 24, seed=2)
CONTEXT = AttentionContext(
    torch.ones(T, S, dtype=torch.bool), torch.arange(T), torch.arange(S), memory=MEMORY
)


def n_parameters(part: Attention) -> int:
    return sum(p.numel() for p in part.parameters())


def test_full_has_the_parameters_of_its_closed_form() -> None:
    d = dims(d_k=10, d_v=3)
    body = 24 * 4 * (2 * 10 + 3) + 4 * 3 * 24
    assert n_parameters(attention("full", d=d, bias=False)) == body
    assert n_parameters(attention("full", d=d)) == body + 2 * 4 * 10 + 4 * 3 + 24


# Fewer heads of keys and values


@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_grouped_query_has_the_parameters_of_its_closed_form(n_groups: int) -> None:
    d = dims(d_k=10, d_v=3)
    body = 24 * 4 * 10 + 24 * n_groups * (10 + 3) + 4 * 3 * 24
    biases = 4 * 10 + n_groups * (10 + 3) + 24
    assert n_parameters(attention("grouped_query", d=d, n_groups=n_groups, bias=False)) == body
    assert n_parameters(attention("grouped_query", d=d, n_groups=n_groups)) == body + biases


@pytest.mark.parametrize("scaling", ["sqrt_dk", "rms_qk_norm", "cosine", "qk_norm", "soft_cap"])
@pytest.mark.parametrize(("name", "n_groups"), [("multi_query", 1), ("grouped_query", 2)])
def test_shared_heads_are_full_attention_with_repeated_weights(
    name: str, n_groups: int, scaling: str
) -> None:
    part, full = attention(name, scaling), attention("full", scaling)
    with torch.no_grad():
        full.q.load_state_dict(part.q.state_dict())
        full.out.load_state_dict(part.out.state_dict())
        for mine, whole in ((part.k, full.k), (part.v, full.v)):
            rows = torch.arange(n_groups).repeat_interleave(4 // n_groups)  # 0 0 1 1
            width = 24 // 4
            weight = mine.weight.unflatten(0, (n_groups, width))[rows].flatten(0, 1)
            whole.weight.copy_(weight)
            whole.bias.copy_(mine.bias.unflatten(0, (n_groups, width))[rows].flatten())
    assert_near(part(X, CONTEXT), full(X, CONTEXT))


@pytest.mark.parametrize(("other", "n_groups"), [("full", 4), ("multi_query", 1)])
def test_grouped_query_reaches_from_one_group_to_one_for_each_head(
    other: str, n_groups: int
) -> None:
    part, extreme = attention("grouped_query", n_groups=n_groups), attention(other)
    extreme.load_state_dict(part.state_dict())
    assert torch.equal(part(X, CONTEXT), extreme(X, CONTEXT))


@pytest.mark.parametrize(("name", "n_groups"), [("multi_query", 1), ("grouped_query", 2)])
def test_keys_and_values_have_as_many_heads_as_there_are_groups(name: str, n_groups: int) -> None:
    part = attention(name, d=dims(d_k=10, d_v=3))
    k, v = part.keys_values(MEMORY)
    assert (k.shape, v.shape) == ((B, n_groups, S, 10), (B, n_groups, S, 3))
    assert part.n_kv_heads == n_groups


def test_grouped_query_equals_pytorchs() -> None:
    part = attention("grouped_query", n_groups=2)
    q = part.q(X).unflatten(-1, (4, 6)).transpose(1, 2)
    k, v = (linear(MEMORY).unflatten(-1, (2, 6)).transpose(1, 2) for linear in (part.k, part.v))
    y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    expected = part.out(y.transpose(1, 2).flatten(-2))
    assert_near(part(X, CONTEXT), expected)


@pytest.mark.parametrize("n_groups", [3, 8])
def test_groups_must_divide_the_heads(n_groups: int) -> None:
    reason = rf"n_heads \(4\) evenly among n_groups \({n_groups}\); choose a number"
    with pytest.raises(RefusedError, match=reason):
        attention("grouped_query", n_groups=n_groups)


# One projection for all heads


def test_per_head_shared_is_full_with_block_diagonal_weights() -> None:
    shared, full = attention("per_head_shared"), attention("full")
    with torch.no_grad():
        for name in ("q", "k", "v"):
            one = getattr(shared, name)
            getattr(full, name).weight.copy_(torch.block_diag(*[one.weight] * 4))
            getattr(full, name).bias.copy_(one.bias.repeat(4))
        full.out.load_state_dict(shared.out.state_dict())
    assert_near(shared(X, CONTEXT), full(X, CONTEXT))
    assert n_parameters(attention("per_head_shared", bias=False)) == 3 * 6 * 6 + 24 * 24


@pytest.mark.parametrize("scaling", ["rms_qk_norm", "cosine", "qk_norm"])
def test_per_head_shared_normalises_its_slices(scaling: str) -> None:
    part = attention("per_head_shared", scaling)
    slices, others = (y.unflatten(-1, (4, 6)).transpose(1, 2) for y in (X, MEMORY))
    q, k = part.scaling.query(part.q(slices)), part.scaling.key(part.k(others))
    y = (q @ k.mT).softmax(dim=-1) @ part.v(others)
    expected = part.out(y.transpose(1, 2).flatten(-2))
    assert_near(part(X, CONTEXT), expected)


def test_per_head_shared_needs_equal_slices() -> None:
    with pytest.raises(RefusedError, match=r"d_model \(24\) must be a multiple of n_heads \(5\)"):
        attention("per_head_shared", d=dims(n_heads=5, d_k=4, d_v=4))


def test_sqrt_dmodel_is_sqrt_dk_with_smaller_queries() -> None:
    flat, sharp = attention("full", "sqrt_dmodel"), attention("full", "sqrt_dk")
    with torch.no_grad():
        for parameter in sharp.q.parameters():
            parameter.mul_(4**-0.5)
    assert_near(flat(X, CONTEXT), sharp(X, CONTEXT))


# Talking heads


def mixes(part: Attention) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the two matrices, that before the softmax first."""
    before, after = (p for p in part.parameters() if p.shape == (4, 4))
    return before, after


def test_talking_heads_start_as_full_attention() -> None:
    talking, full = attention("talking_heads"), attention("full")
    assert talking.load_state_dict(full.state_dict(), strict=False).unexpected_keys == []
    assert_near(talking(X, CONTEXT), full(X, CONTEXT))
    assert n_parameters(talking) == n_parameters(full) + 2 * 4 * 4


def test_talking_heads_mix_scores_and_weights_head_by_head() -> None:
    part = attention("talking_heads")
    before, after = mixes(part)
    with torch.no_grad():
        before.copy_(numbers(4, 4, seed=3))
        after.copy_(numbers(4, 4, seed=4))
    mask = torch.ones(T, S, dtype=torch.bool).tril(2)
    q, (k, v) = part.queries(X), part.keys_values(MEMORY)
    raw = [q[:, h] @ k[:, h].mT for h in range(4)]
    weights = []
    for h in range(4):
        score = torch.stack([raw[f] * before[f, h] for f in range(4)]).sum(dim=0)
        weights.append(score.masked_fill(~mask, -torch.inf).softmax(dim=-1))
    y = [
        torch.stack([weights[h] * after[h, g] for h in range(4)]).sum(dim=0) @ v[:, g]
        for g in range(4)
    ]
    of_call = AttentionContext(mask, torch.arange(T), torch.arange(S), memory=MEMORY)
    assert_near(part(X, of_call), part.out(torch.cat(y, dim=-1)))


def test_talking_heads_mix_the_biases_of_positions_too() -> None:
    part = attention("talking_heads")
    before, _ = mixes(part)
    with torch.no_grad():
        before.copy_(numbers(4, 4, seed=3))
    stack_info = StackInfo(side="encoder", n_encoder_layers=1, n_decoder_layers=1)
    t5 = build(Position, choose(Position, "t5"), dims(), stack_info).double()
    where, unmasked = torch.arange(T), torch.ones(T, T, dtype=torch.bool)
    q, (k, v) = part.queries(X), part.keys_values(X)
    bias = t5.bias(q, where, where, 0)
    assert bias is not None
    scores = torch.tensordot(q @ k.mT + bias, before, dims=([1], [0])).permute(0, 3, 1, 2)
    expected = part.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(-2))
    assert_near(part(X, AttentionContext(unmasked, where, where, t5)), expected)


def test_gradients_reach_both_mixes_from_the_start() -> None:
    part = attention("talking_heads")
    part(X, CONTEXT).square().sum().backward()
    for mix in mixes(part):
        assert mix.grad is not None
        assert bool((mix.grad.abs() > 1e-6).all())  # off the diagonal as well


# Scaled heads


def test_head_scale_starts_as_full_attention() -> None:
    scaled, full = attention("head_scale"), attention("full")
    assert scaled.load_state_dict(full.state_dict(), strict=False).unexpected_keys == []
    assert_near(scaled(X, CONTEXT), full(X, CONTEXT))
    assert n_parameters(scaled) == n_parameters(full) + 4


def test_head_scale_multiplies_each_head_before_the_output_projection() -> None:
    scaled, full = attention("head_scale"), attention("full")
    scaled.load_state_dict(full.state_dict(), strict=False)
    gamma = numbers(4, seed=3)
    assert scaled.head_scale is not None
    with torch.no_grad():
        scaled.head_scale.copy_(gamma)
        full.out.weight.mul_(gamma.repeat_interleave(6))
    assert_near(scaled(X, CONTEXT), full(X, CONTEXT))


def test_gradients_reach_the_scale_of_every_head() -> None:
    part = attention("head_scale")
    part(X, CONTEXT).square().sum().backward()
    assert part.head_scale is not None
    assert part.head_scale.grad is not None
    assert bool((part.head_scale.grad.abs() > 1e-6).all())
