"""Attention and scaling, against PyTorch's kernel and against each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.parts.attention import Attention, Cache, View
from ablate.parts.dims import Dims
from ablate.parts.scaling import Scaling
from ablate.registry import RefusedError, build, choose, slots

B, T, S = 2, 5, 7
KINDS = sorted(slots()["attention"])


def dims(**changes: int) -> Dims:
    return Dims.model_validate({"d_model": 24, "n_heads": 4, "max_len": 16} | changes)


def attention(name: str, d: Dims, scaling: str = "sqrt_dk", **options: Any) -> Attention:
    torch.manual_seed(0)
    part = build(Scaling, choose(Scaling, scaling), d)
    return build(Attention, choose(Attention, name, **options), d, part, 0.0).double()


def view(mask: Tensor, memory: Tensor | None = None, cache: Cache | None = None) -> View:
    return View(mask, torch.arange(T), torch.arange(mask.size(-1)), memory=memory, cache=cache)


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, 24, generator=generator, dtype=torch.float64)
    return x, torch.randn(B, S, 24, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("scaling", "factor"), [("sqrt_dk", 10**-0.5), ("sqrt_dmodel", 24**-0.5), ("none", 1.0)]
)
@pytest.mark.parametrize("name", KINDS)
def test_kernel_equals_pytorchs(name: str, scaling: str, factor: float) -> None:
    part, (x, memory) = attention(name, dims(d_k=10, d_v=3), scaling), inputs()
    mask = torch.ones(B, 1, 1, S, dtype=torch.bool)
    mask[1, :, :, 4:] = False
    k, v = part.keys_values(memory)
    y = F.scaled_dot_product_attention(part.queries(x), k, v, attn_mask=mask, scale=factor)
    expected = part.out(y.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(part(x, view(mask, memory)), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("widths", [{}, {"d_k": 3}, {"d_v": 10}, {"n_heads": 1}, {"n_heads": 24}])
def test_any_number_of_heads_and_any_width(name: str, widths: dict[str, int]) -> None:
    d = dims(**widths)
    part, (x, _) = attention(name, d), inputs()
    assert part.queries(x).shape == (B, d.n_heads, T, d.d_k)
    k, v = part.keys_values(x)
    assert (k.shape, v.shape) == ((B, d.n_heads, T, d.d_k), (B, d.n_heads, T, d.d_v))
    assert part(x, view(torch.ones(T, T, dtype=torch.bool))).shape == x.shape


def test_full_has_the_parameters_of_its_closed_form() -> None:
    part = attention("full", dims(d_k=10, d_v=3), bias=False)
    assert sum(p.numel() for p in part.parameters()) == 24 * 4 * (2 * 10 + 3) + 4 * 3 * 24


def test_per_head_shared_is_full_with_block_diagonal_weights() -> None:
    shared, full = (attention(name, dims()) for name in ("per_head_shared", "full"))
    with torch.no_grad():
        for name in ("q", "k", "v"):
            one = getattr(shared, name)
            getattr(full, name).weight.copy_(torch.block_diag(*[one.weight] * 4))
            getattr(full, name).bias.copy_(one.bias.repeat(4))
        full.out.load_state_dict(shared.out.state_dict())
    (x, memory), mask = inputs(), torch.ones(T, S, dtype=torch.bool)
    looked = view(mask, memory)
    torch.testing.assert_close(shared(x, looked), full(x, looked), atol=1e-12, rtol=0)


def test_sqrt_dmodel_is_sqrt_dk_with_smaller_queries() -> None:
    flat, sharp = (attention("full", dims(), name) for name in ("sqrt_dmodel", "sqrt_dk"))
    with torch.no_grad():
        for parameter in sharp.q.parameters():
            parameter.mul_(4**-0.5)
    (x, memory), mask = inputs(), torch.ones(T, S, dtype=torch.bool)
    torch.testing.assert_close(
        flat(x, view(mask, memory)), sharp(x, view(mask, memory)), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("name", KINDS)
def test_a_query_that_may_look_nowhere_gives_numbers(name: str) -> None:
    part, (x, memory) = attention(name, dims()), inputs()
    nothing = torch.zeros(T, S, dtype=torch.bool)
    assert bool(part(x, view(nothing, memory)).isfinite().all())


@pytest.mark.parametrize("name", KINDS)
def test_a_cache_changes_nothing(name: str) -> None:
    part, (x, _) = attention(name, dims()), inputs()
    whole = part(x, view(torch.ones(T, T, dtype=torch.bool).tril()))
    cache, parts = Cache(T), []
    for t in range(T):
        seen = torch.ones(1, t + 1, dtype=torch.bool)
        here = View(seen, torch.tensor([t]), torch.arange(t + 1), cache=cache)
        parts.append(part(x[:, t : t + 1], here))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-12, rtol=0)


def test_per_head_shared_needs_equal_slices() -> None:
    with pytest.raises(RefusedError, match=r"d_model \(24\) must be a multiple of n_heads \(5\)"):
        attention("per_head_shared", dims(n_heads=5, d_k=4, d_v=4))


def test_heads_must_divide_the_width_unless_told_theirs() -> None:
    with pytest.raises(ValueError, match=r"d_model \(24\) is not a multiple of n_heads \(5\)"):
        dims(n_heads=5)
    assert dims(n_heads=5, d_k=4, d_v=6).d_v == 6
