"""Attentions with other functions than the softmax, gates, differences, and latent vectors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.parts.attention import Attention, AttentionContext
from ablate.parts.dims import Dims, Dropout
from ablate.parts.scaling import Scaling
from ablate.registry import RefusedError, build, choose
from tests.parts.tensors import close, joined, numbers
from tests.tiny import accepted, ids, scrambled, tiny

B, T, S, H = 2, 5, 7, 4


def dims(**changes: int) -> Dims:
    return Dims.model_validate({"d_model": 24, "n_heads": H, "max_len": 16} | changes)


def attention(name: str, d: Dims | None = None, **options: Any) -> Any:
    """Return an attention with arbitrary weights."""
    d = d or dims()
    scaling = build(Scaling, choose(Scaling, "sqrt_dk"), d)
    part = build(Attention, choose(Attention, name, **options), d, scaling, Dropout()).double()
    with torch.no_grad():
        for seed, parameter in enumerate(part.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=seed) / 2)
    return part.eval()


X, MEMORY = 2 * numbers(B, T, 24, seed=91), 2 * numbers(B, S, 24, seed=92)
MASK = torch.ones(T, S, dtype=torch.bool).tril(2)


def context(layer: int = 0, **more: Any) -> AttentionContext:
    return AttentionContext(
        MASK, torch.arange(T), torch.arange(S), memory=MEMORY, layer=layer, **more
    )


def heads(linear: Any, x: Tensor) -> Tensor:
    return linear(x).unflatten(-1, (H, -1)).transpose(1, 2)


def scores_of(part: Any) -> Tensor:
    q, k = heads(part.q, X), heads(part.k, MEMORY)
    return q @ k.mT / part.q.out_features**0.5 * H**0.5


def weighted(part: Any, function: Any) -> Tensor:
    """Return the attention in which ``function`` makes weights of the allowed scores of a query."""
    scores = scores_of(part)
    weights = torch.zeros_like(scores)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                keys = MASK[t].nonzero()[:, 0]
                weights[b, h, t, keys] = function(scores[b, h, t, keys], h)
    return joined(part, weights @ heads(part.v, MEMORY))


def root(scores: Tensor, power: int, factor: float) -> Tensor:
    """Return max(factor s - tau, 0)^power with the tau at which they sum to 1, by bisection."""
    low, high = factor * scores.max() - 1, factor * scores.max()
    for _ in range(80):
        tau = (low + high) / 2
        total = (factor * scores - tau).clamp(min=0).pow(power).sum()
        low, high = (tau, high) if total > 1 else (low, tau)
    return (factor * scores - tau).clamp(min=0).pow(power)


def test_sink_is_pytorchs_with_one_more_key_without_a_value() -> None:
    part = attention("sink")
    q, k, v = heads(part.q, X), heads(part.k, MEMORY), heads(part.v, MEMORY)
    k, v = (F.pad(y, (0, 0, 0, 1)) for y in (k, v))
    bias = F.pad(torch.zeros(T, S).double().masked_fill(~MASK, -math.inf), (0, 1))
    bias = bias.expand(B, H, T, S + 1).clone()
    bias[..., -1] = part.sink[:, None]
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    computed, slope = part(X, context()), numbers(B, T, 24, seed=7)
    close(computed, joined(part, y))
    close(
        torch.autograd.grad((computed * slope).sum(), part.sink),
        torch.autograd.grad((joined(part, y) * slope).sum(), part.sink),
    )


def test_a_sink_takes_all_of_a_query_without_allowed_keys() -> None:
    part = attention("sink")
    nothing = AttentionContext(~MASK & MASK, torch.arange(T), torch.arange(S), memory=MEMORY)
    close(part(X, nothing), part.out.bias.expand(B, T, -1))


def test_a_sink_starts_at_the_score_0() -> None:
    scaling = build(Scaling, choose(Scaling, "sqrt_dk"), dims())
    part: Any = build(Attention, choose(Attention, "sink"), dims(), scaling, Dropout())
    assert part.sink.tolist() == [0.0] * H


def test_sigmoid_by_hand() -> None:
    part = attention("sigmoid")
    expected = weighted(part, lambda s, _: 1 / (1 + (-s).exp() * len(s)))
    close(part(X, context()), expected)


def test_sigmoid_of_a_single_key() -> None:
    part, scores = attention("sigmoid"), numbers(1, H, 1, S, seed=5)
    alone = torch.arange(S) == 2
    weights = part.normalise(scores, alone)
    close(weights, torch.where(alone, scores.sigmoid(), 0.0))


@pytest.mark.parametrize(("name", "power", "factor"), [("sparsemax", 1, 1), ("entmax15", 2, 0.5)])
def test_sparse_weights_by_bisection(name: str, power: int, factor: float) -> None:
    part = attention(name)
    expected = weighted(part, lambda s, _: root(s, power, factor))
    close(part(X, context()), expected, atol=1e-10)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_gradient_of_sparse_weights_is_that_of_its_closed_form(name: str, scale: float) -> None:
    """With s = 1 on the support, or the root of the weights: diag(s) - s s^T / sum(s)."""
    part = attention(name)
    scores = (scale * numbers(3, 9, seed=5)).requires_grad_()
    slope = numbers(3, 9, seed=6)
    weights = part.normalise(scores, torch.ones(9, dtype=torch.bool))
    close(weights.sum(dim=-1), torch.ones(3).double(), atol=1e-9)
    (weights * slope).sum().backward()
    assert scores.grad is not None
    p = weights.detach()
    s = (p > 0).double() if name == "sparsemax" else p.sqrt()
    mean = (s * slope).sum(dim=-1, keepdim=True) / s.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(scores.grad, s * (slope - mean), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "sigmoid", "sink"])
def test_masked_keys_have_a_weight_of_0_and_no_gradient(name: str) -> None:
    part = attention(name)
    scores = numbers(1, H, T, S, seed=5).requires_grad_()
    lowest = scores.masked_fill(~MASK, torch.finfo(torch.float64).min)
    weights = part.normalise(lowest, MASK)
    assert not weights[(~MASK).expand_as(weights)].any()
    (weights * numbers(1, H, T, S, seed=6)).sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())
    assert not scores.grad[(~MASK).expand_as(weights)].any()


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("score", [math.inf, math.nan])
def test_scores_that_have_diverged_give_weights_that_have(name: str, score: float) -> None:
    weights = attention(name).normalise(torch.tensor([1.0, score]), torch.ones(2).bool())
    assert weights.isnan().any()


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "sigmoid", "sink"])
def test_weights_of_bf16_scores_are_computed_in_single_precision(name: str) -> None:
    part = attention(name).float()
    scores = numbers(1, H, T, S, seed=5).bfloat16()
    weights = part.normalise(scores, MASK)
    assert weights.dtype == torch.float32
    assert torch.equal(weights, part.normalise(scores.float(), MASK))


def test_gates_are_of_every_element_and_made_from_the_query() -> None:
    part, full = attention("gated"), attention("full")
    full.load_state_dict({k: v for k, v in part.state_dict().items() if "gate" not in k})
    y = scores_of(part).masked_fill(~MASK, -math.inf).softmax(dim=-1) @ heads(part.v, MEMORY)
    gates = 1 / (1 + (-part.gate(X)).exp())
    close(part(X, context()), part.out(y.transpose(1, 2).flatten(-2) * gates))
    with torch.no_grad():
        part.gate.weight.zero_()
        part.gate.bias.fill_(50.0)
    close(part(X, context()), full(X, context()))


def test_values_are_mixed_with_those_of_the_lowest_layer_in_self_attention() -> None:
    part, full = attention("value_residual", share=0.3), attention("full")
    full.load_state_dict(part.state_dict())
    where, everything = torch.arange(T), torch.ones(T, T, dtype=torch.bool)
    shared: list[Tensor] = []
    of_call = AttentionContext(everything, where, where, first_values=shared)
    close(part(X, of_call), full(X, of_call))
    (lowest,) = shared
    close(lowest, heads(part.v, X))
    other = X.flip(1)
    q, k, v = (heads(linear, other) for linear in (part.q, part.k, part.v))
    y = F.scaled_dot_product_attention(q, k, 0.7 * v + 0.3 * lowest)
    close(part(other, of_call), joined(part, y))
    assert shared == [lowest]
    crossed = context(first_values=shared)
    close(part(X, crossed), full(X, crossed))


def test_the_layers_of_a_stack_share_the_lowest_values() -> None:
    """With a share near 1 the second layer's own values hardly matter; they do in `full`."""
    options = {"name": "value_residual", "share": 0.999999999}
    src = ids(2, 7)
    for attention_, is_lost in ((options, True), ("full", False)):
        model = scrambled(tiny(n_layers=2, attention=attention_).double())
        before = model.encode(src).states
        with torch.no_grad():
            model.encoder.blocks[1].attention.v.weight.mul_(1.5)
        assert torch.allclose(model.encode(src).states, before, atol=1e-6) is is_lost


@pytest.mark.parametrize("layer", [0, 3])
def test_differential_by_hand(layer: int) -> None:
    part = attention("differential", dims(d_k=3, d_v=6))
    initial = {0: 0.2, 3: 0.8 - 0.6 * math.exp(-0.9)}[layer]
    (a1, b1), (a2, b2) = part.vectors
    share = (a1 @ b1).exp() - (a2 @ b2).exp() + initial
    v = heads(part.v, MEMORY)
    maps = []
    for q, k in ((part.q, part.k), (part.second_q, part.second_k)):
        scores = heads(q, X) @ heads(k, MEMORY).mT / 3**0.5
        maps.append(scores.masked_fill(~MASK, -math.inf).softmax(dim=-1))
    y = (maps[0] - share * maps[1]) @ v
    y = y / (y.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * part.head_norm.weight
    expected, computed = joined(part, (1 - initial) * y), part(X, context(layer))
    close(computed, expected)
    slope, trained = numbers(B, T, 24, seed=7), [part.vectors, part.second_q.weight]
    close(
        torch.autograd.grad((computed * slope).sum(), trained),
        torch.autograd.grad((expected * slope).sum(), trained),
        atol=1e-10,
    )


def test_differential_starts_with_small_vectors() -> None:
    d = dims(d_k=500)
    scaling = build(Scaling, choose(Scaling, "sqrt_dk"), d)
    part: Any = build(Attention, choose(Attention, "differential"), d, scaling, Dropout())
    assert part.vectors.std().item() == pytest.approx(0.1, rel=0.06)


def test_differential_refuses_to_hand_scores_to_the_next_layer() -> None:
    with pytest.raises(RefusedError, match="differential attention has two maps of scores"):
        tiny(attention="differential", residual="realformer")
    assert accepted(attention="sink", residual="realformer") is not None


@pytest.mark.parametrize("rank", [None, 5])
def test_latent_is_full_with_low_rank_keys_and_values(rank: int | None) -> None:
    part, full = attention("latent", rank=rank), attention("full")
    assert part.compress.out_features == (rank or 24)
    c = part.compress(MEMORY)
    c = c / (c.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * part.norm.weight
    q, k, v = heads(part.q, X), heads(part.k, c), heads(part.v, c)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=MASK)
    close(part(X, context()), joined(part, y))
    assert full.q.weight.shape == part.q.weight.shape
