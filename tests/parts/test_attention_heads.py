"""The differences between attentions: shared projections, and mixed or scaled heads."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from ablate.parts.attention import Attention, AttentionContext
from ablate.parts.dims import Dims, Dropout
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


# Fewer heads of keys and values


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


@pytest.mark.parametrize("n_groups", [3, 8])
def test_groups_must_divide_the_heads(n_groups: int) -> None:
    reason = rf"n_heads \(4\) evenly among n_groups \({n_groups}\); choose a number"
    with pytest.raises(RefusedError, match=reason):
        attention("grouped_query", n_groups=n_groups)


# One projection for all heads


@pytest.mark.parametrize("scaling", ["sqrt_dk", "rms_qk_norm", "cosine", "qk_norm"])
def test_per_head_shared_is_full_with_block_diagonal_weights(scaling: str) -> None:
    shared, full = attention("per_head_shared", scaling), attention("full", scaling)
    with torch.no_grad():
        for name in ("q", "k", "v"):
            one = getattr(shared, name)
            getattr(full, name).weight.copy_(torch.block_diag(*[one.weight] * 4))
            getattr(full, name).bias.copy_(one.bias.repeat(4))
        full.out.load_state_dict(shared.out.state_dict())
    assert_near(shared(X, CONTEXT), full(X, CONTEXT))
    assert n_parameters(attention("per_head_shared", bias=False)) == 3 * 6 * 6 + 24 * 24


def test_per_head_shared_needs_equal_slices() -> None:
    with pytest.raises(RefusedError, match=r"d_model \(24\) must be a multiple of n_heads \(5\)"):
        attention("per_head_shared", d=dims(n_heads=5, d_k=4, d_v=4))


# Talking heads and scaled heads


@pytest.mark.parametrize("name", ["talking_heads", "head_scale"])
def test_heads_are_neither_mixed_nor_scaled_at_first(name: str) -> None:
    part, full = attention(name), attention("full")
    assert part.load_state_dict(full.state_dict(), strict=False).unexpected_keys == []
    assert_near(part(X, CONTEXT), full(X, CONTEXT))
