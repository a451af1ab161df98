"""Dropout of elements, words and heads, against their definitions."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import nn

from ablate.parts.dims import Dropout
from ablate.parts.dropout import ElementDropout, HeadDropout, WordDropout


def dropped_ones(p: float, *shape: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return ElementDropout(p).train()(torch.ones(shape))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_a_share_of_p_is_zero_and_the_others_are_scaled(p: float) -> None:
    y = dropped_ones(p, 400, 500)
    share = (y == 0).double().mean().item()
    assert share == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / y.numel()))
    assert y.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)
    assert y[y != 0].unique().numel() == 1
    assert y.mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3, 5), (0, 4)])
def test_any_shape_and_type(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        y = ElementDropout(0.5).train()(torch.ones(shape, dtype=dtype))
        assert (y.shape, y.dtype) == (torch.Size(shape), dtype)


def test_dropped_elements_have_no_gradient() -> None:
    x = torch.ones(50, 40, requires_grad=True)
    y = ElementDropout(0.3).train()(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.detach())


def test_evaluation_is_the_identity() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(ElementDropout(0.5).eval()(x), x)


@pytest.mark.parametrize("p", [1e-7, 2**-16])
def test_the_least_rates_drop_next_to_nothing(p: float) -> None:
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(0)
    ElementDropout(p).train()(x).sum().backward()
    assert x.grad is not None
    kept = x.grad[x.grad != 0].tolist()
    assert len(kept) > 990
    assert kept == pytest.approx([1 / (1 - p)] * len(kept))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_rates_of_0_and_1_are_those_of_torch(p: float) -> None:
    ours, theirs = (torch.ones(30, 4, requires_grad=True) for _ in range(2))
    states = []
    for x, dropout in ((ours, ElementDropout(p)), (theirs, nn.Dropout(p))):
        torch.manual_seed(0)
        y = dropout.train()(x)
        y.sum().backward()
        assert y.unique().tolist() == [1 - p]
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("n", [7, 8])
def test_a_mask_compares_16_bits_of_as_few_integers_as_possible(n: int) -> None:
    y = dropped_ones(0.3, n)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    integers = torch.empty(2, dtype=torch.int64).random_(-(2**63), None)
    assert torch.equal(torch.get_rng_state(), state)
    mask = integers.view(torch.int16)[:n].int() >= round(0.3 * 2**16) - 2**15
    assert torch.equal(y != 0, mask)


def test_other_devices_use_that_of_torch() -> None:
    assert ElementDropout(0.5).train()(torch.ones(3, device="meta")).device.type == "meta"


PAD, UNKNOWN = 0, 3


def embed(ids: torch.Tensor) -> torch.Tensor:
    """Return vectors that tell ids apart, (B, T, 2)."""
    return torch.stack((ids + 1.0, 2.0 * ids), dim=-1)


def words(form: str, rate: float = 0.3) -> WordDropout:
    dropout = Dropout.model_validate({"word": rate, "word_form": form})
    return WordDropout(dropout, unknown=UNKNOWN, pad=PAD).train()


def test_a_word_may_become_unknown_and_padding_may_not() -> None:
    ids = torch.randint(4, 90, (200, 50))
    ids[:, 40:] = PAD
    torch.manual_seed(0)
    y = words("unknown")(ids, embed)
    is_unknown = (y == embed(torch.tensor(UNKNOWN))).all(dim=-1)
    assert not is_unknown[:, 40:].any()
    assert is_unknown[:, :40].double().mean().item() == pytest.approx(0.3, abs=0.02)
    assert torch.equal(y[~is_unknown], embed(ids)[~is_unknown])
    assert torch.equal(words("unknown").eval()(ids, embed), embed(ids))


def test_words_of_a_type_share_their_fate_in_a_sentence_alone() -> None:
    ids = torch.tensor([[4, 5, 4, 6, 4, 5]]).repeat(4000, 1)
    torch.manual_seed(0)
    y = words("type")(ids, embed)
    factors = y[..., 0] / embed(ids)[..., 0]
    is_kept = factors > 0
    torch.testing.assert_close(factors[is_kept], torch.full_like(factors[is_kept], 1 / 0.7))
    torch.testing.assert_close(y, embed(ids) * factors[:, :, None])
    assert torch.equal(is_kept[:, [0, 0, 1]], is_kept[:, [2, 4, 5]])
    fates = Counter(map(tuple, is_kept[:, [0, 1, 3]].tolist()))
    for fate in itertools.product((True, False), repeat=3):
        expected = 0.7 ** sum(fate) * 0.3 ** (3 - sum(fate))
        assert fates[fate] / 4000 == pytest.approx(expected, abs=0.03)
    assert torch.equal(words("type").eval()(ids, embed), embed(ids))


def heads(rate: float, n: int = 3) -> torch.Tensor:
    """Return which heads of many sentences are kept, and check their factors."""
    dropout = Dropout.model_validate({"head": rate, "head_form": "drophead"})
    torch.manual_seed(0)
    y = HeadDropout(dropout).train()(torch.ones(20_000, n, 2, 2))
    torch.testing.assert_close(y, y[:, :, :1, :1].expand_as(y))
    factors = y[:, :, 0, 0]
    is_kept = factors > 0
    expected = is_kept * n / is_kept.sum(dim=1, keepdim=True)
    torch.testing.assert_close(factors, expected.float())
    return is_kept


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_drophead_keeps_what_drawing_again_where_none_is_kept_would(rate: float) -> None:
    shares = Counter(map(tuple, heads(rate).tolist()))
    assert (False,) * 3 not in shares
    for fate in itertools.product((True, False), repeat=3):
        if any(fate):
            n = sum(fate)
            expected = (1 - rate) ** n * rate ** (3 - n) / (1 - rate**3)
            assert shares[fate] / 20_000 == pytest.approx(expected, abs=0.015), fate


def test_drophead_never_drops_the_only_head() -> None:
    assert heads(0.9, n=1).all()
