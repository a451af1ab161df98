"""Scalings, each against its formula for one query and one key."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.parts.dims import Dims
from ablate.parts.scaling import Scaling
from ablate.registry import build, choose, slots
from tests.parts.tensors import numbers

B, H, G, T, S, K = 2, 4, 2, 5, 7, 10
DIMS = Dims.model_validate({"d_model": 24, "n_heads": H, "max_len": 16, "d_k": K})
NAMES = sorted(slots()["scaling"])


def make(name: str, dims: Dims = DIMS, **options: Any) -> Scaling:
    return build(Scaling, choose(Scaling, name, **options), dims).double()


def scores(part: Scaling, q: Tensor, k: Tensor) -> Tensor:
    """Return (B, H, T, S) from raw queries and keys, the way an attention does it."""
    return part.scores(part.query(q) @ part.key(k).transpose(-1, -2)).detach()


def dots(q: Tensor, k: Tensor) -> Tensor:
    return (q[..., :, None, :] * k[..., None, :, :]).sum(dim=-1)


def cosines(q: Tensor, k: Tensor) -> Tensor:
    return F.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_keep_their_type(name: str, dtype: torch.dtype) -> None:
    part = make(name).float() if dtype is torch.bfloat16 else make(name).to(dtype)
    q = torch.randn(B, H, T, K, dtype=dtype)
    assert part.query(q).dtype is dtype
    assert part.key(q).dtype is dtype
    assert part.scores(q).dtype is dtype


@pytest.mark.parametrize("name", NAMES)
def test_what_is_normalised_in_half_precision_is_rounded_once(name: str) -> None:
    part, exact = make(name).float(), make(name)
    q = torch.randn(B, H, 50, K, generator=torch.Generator().manual_seed(1)).bfloat16()
    for hook in ("query", "key"):
        rounded = getattr(part, hook)(q)
        is_same = rounded == getattr(exact, hook)(q.double()).bfloat16()
        assert is_same.double().mean() > 0.99


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_of_zeros_gives_numbers(name: str) -> None:
    part, zeros = make(name), torch.zeros(1, H, 3, K, dtype=torch.float64, requires_grad=True)
    y = part.scores(part.query(zeros) @ part.key(zeros).mT)
    assert torch.equal(y.detach(), torch.zeros(1, H, 3, 3, dtype=torch.float64))
    y.sum().backward()
    assert zeros.grad is not None
    assert bool(zeros.grad.isfinite().all())


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("none", 1.0),
        ("sqrt_dk", 10**-0.5),
        ("sqrt_dmodel", 24**-0.5),
        ("dk", 0.1),
        ("learned", 10**-0.5),
    ],
)
def test_a_multiple_of_the_dot_product(name: str, factor: float) -> None:
    q, k = 3 * numbers(B, H, T, K), numbers(B, H, S, K, seed=2)
    torch.testing.assert_close(scores(make(name), q, k), factor * dots(q, k), atol=1e-6, rtol=0)
    if name != "learned":  # which starts in single precision
        torch.testing.assert_close(
            scores(make(name), q, k), factor * dots(q, k), atol=1e-12, rtol=0
        )


def parameter(part: Scaling) -> torch.nn.Parameter:
    (only,) = part.parameters()
    return only


@torch.no_grad()
def test_learned_trains_one_number_for_all_heads() -> None:
    part, q, k = make("learned"), numbers(B, H, T, K), numbers(B, H, S, K, seed=2)
    assert parameter(part).numel() == 1
    parameter(part).fill_(1.7)
    torch.testing.assert_close(scores(part, q, k), 1.7 * dots(q, k), atol=1e-13, rtol=0)


@torch.no_grad()
def test_learned_may_train_a_number_for_each_head() -> None:
    part, q, k = make("learned", per_head=True), numbers(B, H, T, K), numbers(B, H, S, K, seed=2)
    torch.testing.assert_close(scores(part, q, k), dots(q, k) / K**0.5, atol=1e-6, rtol=0)
    factors = torch.tensor([0.2, 1.0, -3.0, 0.0], dtype=torch.float64)
    parameter(part).copy_(factors[:, None, None])
    expected = dots(q, k) * factors[:, None, None]
    torch.testing.assert_close(scores(part, q, k), expected, atol=1e-13, rtol=0)


@torch.no_grad()
def test_qk_norm_is_a_trained_multiple_of_the_cosine() -> None:
    part, q, k = make("qk_norm"), 5 * numbers(B, H, T, K), 0.2 * numbers(B, H, S, K, seed=2)
    assert parameter(part).numel() == 1
    start = math.log2(72 * 71)
    torch.testing.assert_close(scores(part, q, k), start * cosines(q, k), atol=1e-5, rtol=0)
    parameter(part).fill_(1.7)
    torch.testing.assert_close(scores(part, q, k), 1.7 * cosines(q, k), atol=1e-13, rtol=0)


@pytest.mark.parametrize(("length", "start"), [(2, 1.0), (3, math.log2(6)), (17, math.log2(272))])
def test_qk_norm_starts_from_the_typical_length(length: int, start: float) -> None:
    part = build(Scaling, choose(Scaling, "qk_norm", typical_length=length), DIMS)
    assert parameter(part).item() == pytest.approx(start, rel=1e-7)


@torch.no_grad()
def test_cosine_has_a_temperature_for_each_head() -> None:
    part, q, k = make("cosine"), 5 * numbers(B, H, T, K), 0.2 * numbers(B, H, S, K, seed=2)
    torch.testing.assert_close(scores(part, q, k), cosines(q, k) / 0.1, atol=1e-5, rtol=0)
    tau = torch.tensor([0.02, 0.5, 1.0, 3.0], dtype=torch.float64)
    parameter(part).copy_(-tau.log())
    expected = cosines(q, k) / tau[:, None, None]
    torch.testing.assert_close(scores(part, q, k), expected, atol=1e-12, rtol=0)


def test_the_temperature_of_a_cosine_stays_above_a_hundredth() -> None:
    part, q = make("cosine"), numbers(1, H, 1, K)
    with torch.no_grad():
        parameter(part).copy_(-torch.tensor([0.0099, 0.001, 0.0101, 0.5]).log())
    y = part.query(q) @ part.key(q).mT
    by_hand = torch.tensor([100.0, 100.0, 1 / 0.0101, 2.0], dtype=torch.float64)
    torch.testing.assert_close(y.detach().flatten(), by_hand, atol=1e-4, rtol=0)
    y.sum().backward()
    grad = parameter(part).grad
    assert grad is not None
    assert (grad != 0).tolist() == [False, False, True, True]


@torch.no_grad()
def test_rms_qk_norm_is_the_dot_product_of_two_rmsnorms() -> None:
    part = make("rms_qk_norm")
    gains = dict(part.named_parameters())
    assert {name: gain.shape for name, gain in gains.items()} == {
        "query_gain": (K,),
        "key_gain": (K,),
    }
    q, k = numbers(B, H, T, K), 1e-3 * numbers(B, H, S, K, seed=2)  # where 1e-6 is felt
    expected = dots(F.rms_norm(q, (K,), eps=1e-6), F.rms_norm(k, (K,), eps=1e-6)) / math.sqrt(K)
    torch.testing.assert_close(scores(part, q, k), expected, atol=1e-12, rtol=0)
    one, other = numbers(K, seed=3), numbers(K, seed=4)
    gains["query_gain"].copy_(one)
    gains["key_gain"].copy_(other)
    expected = dots(F.rms_norm(q, (K,), one, 1e-6), F.rms_norm(k, (K,), other, 1e-6)) / K**0.5
    torch.testing.assert_close(scores(part, q, k), expected, atol=1e-12, rtol=0)


@torch.no_grad()
def test_layer_qk_norm_is_the_dot_product_of_two_layernorms() -> None:
    part = make("layer_qk_norm")
    q, k = numbers(B, H, T, K) + 3, 1e-3 * numbers(B, H, S, K, seed=2)  # where 1e-6 is felt
    weights = [numbers(K, seed=seed) for seed in range(3, 7)]
    for parameter, value in zip(part.parameters(), weights, strict=True):
        parameter.copy_(value)

    def normed(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return gain * centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() + bias

    expected = dots(normed(q, *weights[:2]), normed(k, *weights[2:])) / K**0.5
    torch.testing.assert_close(scores(part, q, k), expected, atol=1e-12, rtol=0)
    assert sum(p.numel() for p in make("layer_qk_norm", bias=False).parameters()) == 2 * K


@pytest.mark.parametrize("cap", [None, 0.5, 20.0])
def test_soft_cap_keeps_scores_below_its_cap(cap: float | None) -> None:
    part = make("soft_cap") if cap is None else make("soft_cap", cap=cap)
    cap = cap or 50.0
    q, k = 20 * numbers(B, H, T, K), 20 * numbers(B, H, S, K, seed=2)
    plain = dots(q, k) / math.sqrt(K)
    assert plain.abs().max() > cap
    y = scores(part, q, k)
    torch.testing.assert_close(y, cap * (1 - 2 / (1 + (2 * plain / cap).exp())), atol=1e-11, rtol=0)
    assert y.abs().max() <= cap
