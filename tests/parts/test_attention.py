"""The kernel that all attentions share, against PyTorch's, and attentions that share heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.parts.attention import Attention, AttentionContext, KVCache, StaticKVCache
from ablate.parts.attention.contract import softmax
from ablate.parts.dims import Dims, Dropout, StackInfo
from ablate.parts.position import Position
from ablate.parts.scaling import Scaling
from ablate.registry import build, choose, slots
from tests.parts.tensors import close, joined, numbers

B, T, S = 2, 5, 7
NO_DROPOUT = Dropout(attention=0.0, head=0.0)
KINDS = sorted(slots()["attention"])
PLAIN = [  # those that differ in their projections alone
    "full", "grouped_query", "head_scale", "latent", "multi_query", "per_head_shared",
    "talking_heads", "value_residual",
]  # fmt: skip


def dims(**changes: int) -> Dims:
    return Dims.model_validate({"d_model": 24, "n_heads": 4, "max_len": 16} | changes)


def attention(
    name: str, d: Dims, scaling: str = "sqrt_dk", dropout: Dropout = NO_DROPOUT, **options: Any
) -> Attention:
    torch.manual_seed(0)
    part = build(Scaling, choose(Scaling, scaling), d)
    return build(Attention, choose(Attention, name, **options), d, part, dropout).double()


def fitting(name: str, d: Dims) -> dict[str, Any]:
    """Return the options that a part with groups needs for a number of heads that is odd."""
    has_groups = "n_groups" in slots()["attention"][name].options.model_fields
    return {"n_groups": 1} if has_groups and d.n_heads % 2 else {}


def context(mask: Tensor, memory: Tensor | None = None, **more: Any) -> AttentionContext:
    return AttentionContext(
        mask, torch.arange(T), torch.arange(mask.size(-1)), memory=memory, **more
    )


def inputs() -> tuple[Tensor, Tensor]:
    return numbers(B, T, 24), numbers(B, S, 24, seed=2)


def crossing() -> tuple[Tensor, AttentionContext]:
    """Return queries, and a context in which all of them attend to all of another sequence."""
    x, memory = inputs()
    return x, context(torch.ones(T, S, dtype=torch.bool), memory)


@pytest.mark.parametrize("scaling", ["sqrt_dk", "sqrt_dmodel", "none", "dk", "qk_norm", "cosine"])
@pytest.mark.parametrize("name", PLAIN)
def test_kernel_equals_pytorchs(name: str, scaling: str) -> None:
    part, (x, memory) = attention(name, dims(d_k=10, d_v=3), scaling), inputs()
    mask = torch.ones(B, 1, 1, S, dtype=torch.bool)
    mask[1, :, :, 4:] = False
    k, v = part.keys_values(memory)
    y = F.scaled_dot_product_attention(
        part.queries(x), k, v, attn_mask=mask, scale=1.0, enable_gqa=True
    )
    close(part(x, context(mask, memory)), joined(part, y))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("widths", [{}, {"d_k": 3}, {"d_v": 10}, {"n_heads": 1}, {"n_heads": 24}])
def test_any_number_of_heads_and_any_width(name: str, widths: dict[str, int]) -> None:
    d = dims(**widths)
    part, (x, _) = attention(name, d, **fitting(name, d)), inputs()
    width = d.d_k * (1 + (name == "differential"))  # which has two of each side by side
    assert part.queries(x).shape == (B, d.n_heads, T, width)
    k, v = part.keys_values(x)
    n_kv_heads = part.n_kv_heads
    assert d.n_heads % n_kv_heads == 0
    assert (k.shape, v.shape) == ((B, n_kv_heads, T, width), (B, n_kv_heads, T, d.d_v))
    assert part(x, context(torch.ones(T, T, dtype=torch.bool))).shape == x.shape


@pytest.mark.parametrize("name", KINDS)
def test_without_bias_zeros_give_zeros(name: str) -> None:
    x, of_call = inputs()[0], context(torch.ones(T, T, dtype=torch.bool))
    part = attention(name, dims(), bias=False)
    assert torch.equal(part(0 * x, of_call), 0 * x)
    assert all(linear.bias is None for linear in (part.q, part.k, part.v, part.out))
    part = attention(name, dims())
    for linear in (part.q, part.k, part.v, part.out):
        nn.init.ones_(linear.bias)
    assert bool((part(0 * x, of_call) != 0).all())


@pytest.mark.parametrize("name", PLAIN)
def test_a_query_without_allowed_keys_attends_to_all_equally(name: str) -> None:
    part, (x, memory) = attention(name, dims()), inputs()
    none_allowed = torch.zeros(T, S, dtype=torch.bool)
    y = part(x, context(none_allowed, memory))
    _, v = part.keys_values(memory)
    mean = v.mean(dim=2, keepdim=True).repeat_interleave(4 // v.size(1), dim=1)
    close(y, joined(part, mean.expand(-1, -1, T, -1)))


def test_the_softmax_of_bf16_is_taken_in_single_precision() -> None:
    """On every device, as with autocast on a GPU; its gradient is rounded once."""
    part = attention("full", dims(), scaling="none")
    generator = torch.Generator().manual_seed(2)
    q, k, slope = (torch.randn(B, 4, n, 6, generator=generator).bfloat16() for n in (T, S, T))
    narrow = q.clone().requires_grad_()
    wide = q.clone().requires_grad_()
    unmasked = context(torch.ones(1, 1, 1, S, dtype=torch.bool))
    weights = part.weights(narrow, k, unmasked)
    expected = (wide @ k.transpose(-1, -2)).float().softmax(dim=-1)
    assert torch.equal(weights, expected.bfloat16())
    (weights @ k).backward(slope)
    (expected.bfloat16() @ k).backward(slope)
    assert narrow.grad is not None
    assert wide.grad is not None
    assert torch.equal(narrow.grad, wide.grad)
    in_bf16 = (wide @ k.transpose(-1, -2)).softmax(dim=-1)
    (rounded_twice,) = torch.autograd.grad(in_bf16 @ k, wide, slope)
    assert not torch.equal(narrow.grad, rounded_twice)


@pytest.mark.parametrize("n_keys", [1, 7, 15, 16, 17])
def test_the_softmax_of_bf16_is_that_of_fp32_however_few_the_keys(n_keys: int) -> None:
    """Where keys are masked, and where all are."""
    generator = torch.Generator().manual_seed(n_keys)
    scores, slope = (torch.randn(5, n_keys, generator=generator).bfloat16() for _ in range(2))
    lowest = torch.finfo(torch.bfloat16).min
    scores[1, n_keys // 2 :], scores[2] = lowest, lowest
    of_both = []
    for x in (scores.clone().requires_grad_(), scores.float().requires_grad_()):
        weights = softmax(x)
        weights.backward(slope.float())
        of_both.append((weights, x.grad))
    (weights, gradient), (expected, expected_gradient) = of_both
    torch.testing.assert_close(weights, expected)
    assert weights.shape == scores.shape
    assert gradient is not None
    assert expected_gradient is not None
    torch.testing.assert_close(gradient, expected_gradient.bfloat16())
    torch.testing.assert_close(weights[2], torch.full((n_keys,), 1 / n_keys))


@pytest.mark.parametrize("position", sorted(slots()["position"]))
@pytest.mark.parametrize("name", KINDS)
def test_a_cache_changes_nothing(name: str, position: str) -> None:
    part, (x, _) = attention(name, dims()), inputs()
    stack_info = StackInfo(side="decoder", n_encoder_layers=1, n_decoder_layers=2)
    encoding = build(Position, choose(Position, position), dims(), stack_info).double()
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    whole = part(x, context(causal, position=encoding, layer=1))
    cache, parts = KVCache(T), []
    for t in range(T):
        mask = torch.ones(1, t + 1, dtype=torch.bool)
        where = torch.tensor([t]), torch.arange(t + 1)
        of_step = AttentionContext(mask, *where, encoding, cache=cache, layer=1)
        parts.append(part(x[:, t : t + 1], of_step))
    close(torch.cat(parts, dim=1), whole)
    assert [y.size(1) for y in cache.first(T)] == [part.n_kv_heads] * 2


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_cache_holds_what_was_written_and_selected(is_fixed: bool) -> None:
    """Past its first capacity, with rows in another order, repeated and removed."""
    generator = torch.Generator().manual_seed(5)
    cache = KVCache(40)
    history: list[Tensor] = [torch.empty(4, 2, 0, width) for width in (48, 6)]
    selections = {3: [1, 0, 3, 2], 4: [0, 0, 1, 3], 17: [3, 2, 1, 0], 19: [2, 0], 30: [1, 0, 0]}
    selections |= {35: [2], 36: [0, 0], 38: [1, 0]}  # a spare buffer with fewer rows
    for n in range(1, 41):
        n_rows = history[0].size(0)
        new = [torch.randn(n_rows, 2, 1, width, generator=generator) for width in (48, 6)]
        history = [torch.cat(pair, dim=2) for pair in zip(history, new, strict=True)]
        extended = cache.extend(new[0], new[1], torch.tensor([n - 1]), n)
        for returned, cached, expected in zip(extended, cache.first(n), history, strict=True):
            assert torch.equal(returned, expected)
            assert torch.equal(cached, expected)
        if n == 2 and is_fixed:
            cache = StaticKVCache(cache, n, 40)
        if n in selections:
            rows = torch.tensor(selections[n])
            history = [x[rows] for x in history]
            cache.select(rows, n)


def test_a_fixed_cache_has_its_first_addresses_after_two_selections() -> None:
    grown = KVCache.of(torch.randn(4, 2, 3, 5), torch.randn(4, 2, 3, 6))
    cache, swap = StaticKVCache(grown, 3, 8), torch.tensor([1, 0, 3, 2])
    addresses = []
    for _ in range(5):
        addresses.append([x.data_ptr() for x in cache.first(8)])
        cache.select(swap, 3)
    assert addresses[0] == addresses[2] == addresses[4] != addresses[1] == addresses[3]
    assert all(not x[:, :, 3:].any() for x in StaticKVCache(grown, 3, 8).first(8))


class Probe(Position):
    """An encoding whose hooks all change the output in different ways."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return x * (1 + positions.double()[:, None] / 10)

    def bias(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int) -> Tensor:
        where = key_positions - 2 * query_positions[:, None]
        return q.sum(dim=-1, keepdim=True) * where / (7.0 + layer)

    def values(
        self, weights: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int
    ) -> Tensor:
        where = key_positions + 3 * query_positions[:, None]
        return (weights * where * (5 + layer)).sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("name", PLAIN)
def test_the_steps_of_the_kernel_have_their_order(name: str) -> None:
    """Cap, bias of positions, mixed scores, previous scores, mask, softmax, mixed weights, values.

    The terms of positions join the values before heads are scaled. Everything is switched on at
    once, with numbers that make every two orders differ.
    """
    part, (x, _) = attention(name, dims(d_v=3), "soft_cap"), inputs()
    part.scaling.cap = 0.3  # type: ignore[assignment]
    part.use_previous_scores()
    part.add_head_scale()
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    layer, identity = 3, torch.eye(4, dtype=torch.float64)
    score_mix, weight_mix, head_scale, below = draw(4, 4), draw(4, 4), draw(4), draw(B, 4, T, T)
    part.head_scale = nn.Parameter(head_scale)
    if name == "talking_heads":
        part.score_mix, part.weight_mix = nn.Parameter(score_mix), nn.Parameter(weight_mix)
    else:
        score_mix = weight_mix = identity
    probe = Probe(dims(), StackInfo(side="encoder", n_encoder_layers=4, n_decoder_layers=1))
    mask, where = torch.ones(T, T, dtype=torch.bool).tril(), torch.arange(T)
    q, (k, v) = part.queries(x), part.keys_values(x)
    k, v = (y.repeat_interleave(4 // y.size(1), dim=1) for y in (k, v))
    q, k = probe.rotate(q, where), probe.rotate(k, where)
    scores = 0.3 * torch.tanh(q @ k.mT / 0.3) + probe.bias(q, where, where, layer)
    scores = torch.einsum("bfts,fh->bhts", scores, score_mix) + below
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    weights = torch.einsum("bhts,hg->bgts", weights, weight_mix)
    y = (weights @ v + probe.values(weights, where, where, layer)) * head_scale[:, None, None]
    previous_scores = [below]
    of_call = context(mask, position=probe, previous_scores=previous_scores, layer=layer)
    y, computed = joined(part, y), part(x, of_call)
    close(computed, y)
    close(previous_scores, [scores])
    slope, trained = draw(*y.shape), [part.q.weight, part.k.weight, part.v.weight]
    close(
        torch.autograd.grad((computed * slope).sum(), trained),
        torch.autograd.grad((y * slope).sum(), trained),
        atol=1e-9,
    )


@pytest.mark.parametrize("name", PLAIN)
def test_dropout_of_weights_drops_single_weights(name: str) -> None:
    part, (x, memory) = attention(name, dims(), dropout=Dropout(attention=0.5)), inputs()
    of_call = context(torch.ones(T, S, dtype=torch.bool), memory)
    k, v = (y.repeat_interleave(4 // y.size(1), dim=1) for y in part.keys_values(memory))
    weights = (part.queries(x) @ k.mT).softmax(dim=-1)
    tensors: list[Tensor] = []
    part.dropout.register_forward_hook(lambda _, before, after: tensors.extend((*before, after)))
    y = part.train()(x, of_call)
    before, after = tensors
    close(before, weights)
    close(y, joined(part, after @ v))
    assert {round(f, 9) for f in (after / before).flatten().tolist()} == {0.0, 2.0}
    assert torch.equal(part.eval()(x, of_call), attention(name, dims())(x, of_call))


@pytest.mark.parametrize("name", KINDS)
def test_dropout_of_heads_drops_whole_heads_of_a_sentence(name: str) -> None:
    part, (x, memory) = attention(name, dims(), dropout=Dropout(head=0.5)), inputs()
    of_call = context(torch.ones(T, S, dtype=torch.bool), memory)
    nn.init.eye_(part.out.weight)
    nn.init.zeros_(part.out.bias)
    heads = part.eval()(x, of_call).unflatten(-1, (4, -1))  # (B, T, H, V)
    torch.manual_seed(3)
    dropped = part.train()(x, of_call).unflatten(-1, (4, -1))
    factors = dropped / heads
    torch.testing.assert_close(factors, factors[:, :1, :, :1].expand_as(factors))
    assert {round(f, 9) for f in factors.flatten().tolist()} == {0.0, 2.0}
    assert not torch.equal(factors[0], factors[1])


@pytest.mark.parametrize("name", KINDS)
def test_linear_layers_have_their_roles(name: str) -> None:
    """Other programs pack queries, keys and values into one matrix."""
    part = attention(name, dims())
    roles = part.linear_roles().items()
    second = [part.second_q, part.second_k] if name == "differential" else []
    packed = [part.q, part.k, part.v, *second]
    assert [linear for linear, role in roles if role.is_packed] == packed
    assert [linear for linear, role in roles if role.is_value] == [part.v]
    assert [linear for linear, role in roles if role.is_query] == [part.q, *second[:1]]
    assert [linear for linear, role in roles if role.ends_branch] == [part.out]


@pytest.mark.parametrize("scaling", ["sqrt_dk", "rms_qk_norm", "cosine", "qk_norm", "soft_cap"])
@pytest.mark.parametrize(("name", "n_groups"), [("multi_query", 1), ("grouped_query", 2)])
def test_shared_heads_are_full_attention_with_repeated_weights(
    name: str, n_groups: int, scaling: str
) -> None:
    part, full = attention(name, dims(), scaling), attention("full", dims(), scaling)
    x, of_call = crossing()
    with torch.no_grad():
        full.q.load_state_dict(part.q.state_dict())
        full.out.load_state_dict(part.out.state_dict())
        for mine, whole in ((part.k, full.k), (part.v, full.v)):
            rows = torch.arange(n_groups).repeat_interleave(4 // n_groups)  # 0 0 1 1
            width = 24 // 4
            weight = mine.weight.unflatten(0, (n_groups, width))[rows].flatten(0, 1)
            whole.weight.copy_(weight)
            whole.bias.copy_(mine.bias.unflatten(0, (n_groups, width))[rows].flatten())
    close(part(x, of_call), full(x, of_call))


@pytest.mark.parametrize(("other", "n_groups"), [("full", 4), ("multi_query", 1)])
def test_grouped_query_reaches_from_one_group_to_one_for_each_head(
    other: str, n_groups: int
) -> None:
    part, extreme = attention("grouped_query", dims(), n_groups=n_groups), attention(other, dims())
    x, of_call = crossing()
    extreme.load_state_dict(part.state_dict())
    assert torch.equal(part(x, of_call), extreme(x, of_call))


@pytest.mark.parametrize("scaling", ["sqrt_dk", "rms_qk_norm", "cosine", "qk_norm"])
def test_per_head_shared_is_full_with_block_diagonal_weights(scaling: str) -> None:
    shared, full = attention("per_head_shared", dims(), scaling), attention("full", dims(), scaling)
    x, of_call = crossing()
    with torch.no_grad():
        for name in ("q", "k", "v"):
            one = getattr(shared, name)
            getattr(full, name).weight.copy_(torch.block_diag(*[one.weight] * 4))
            getattr(full, name).bias.copy_(one.bias.repeat(4))
        full.out.load_state_dict(shared.out.state_dict())
    close(shared(x, of_call), full(x, of_call))
    assert (
        sum(p.numel() for p in attention("per_head_shared", dims(), bias=False).parameters())
        == 3 * 6 * 6 + 24 * 24
    )


@pytest.mark.parametrize("name", ["talking_heads", "head_scale"])
def test_heads_are_neither_mixed_nor_scaled_at_first(name: str) -> None:
    part, full = attention(name, dims()), attention("full", dims())
    x, of_call = crossing()
    assert part.load_state_dict(full.state_dict(), strict=False).unexpected_keys == []
    close(part(x, of_call), full(x, of_call))
    assert len([*part.parameters()]) > len([*full.parameters()]), "to be trained"
