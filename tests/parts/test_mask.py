"""Masks: as tables, and in an assembled model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.config.inheritance import SIDES
from ablate.parts.dims import Side, StackInfo
from ablate.parts.mask import Mask
from ablate.registry import build, choose
from tests.tiny import PAD, ids, scrambled, tiny

N = 11
LENGTHS = (N, 9)  # of two sentences, padded to N
Rule = Callable[[Side, int, int, bool], bool]


def mask(name: str, side: Side, **options: Any) -> Mask:
    stack_info = StackInfo(side=side, n_encoder_layers=2, n_decoder_layers=3)
    return build(Mask, choose(Mask, name, **options), stack_info)


def token_mask() -> Tensor:
    """Return where there is a token, (2, 1, 1, N)."""
    return torch.stack([torch.arange(N) < n for n in LENGTHS])[:, None, None]


def causal(side: Side, query: int, key: int, is_token: bool) -> bool:
    return key <= query if side == "decoder" else is_token


def causal_padding(side: Side, query: int, key: int, is_token: bool) -> bool:
    return is_token and causal(side, query, key, is_token)


def local(window: int) -> Rule:
    return lambda side, q, k, token: causal(side, q, k, token) and -window <= q - k <= window


def local_sink(window: int, n: int) -> Rule:
    return lambda side, q, k, token: (
        local(window)(side, q, k, token) or (k < n and causal(side, q, k, token))
    )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("causal", {}, causal),
        ("causal_padding", {}, causal_padding),
        ("local", {}, local(8)),
        ("local", {"window": 1}, local(1)),
        ("local", {"window": 3}, local(3)),
        ("local_sink", {"window": 2, "n_first": 3}, local_sink(2, 3)),
        ("local_sink", {"window": 2}, local_sink(2, 4)),
        ("local_global", {"window": 2}, local(2)),
    ],
)
def test_the_table_is_that_of_the_rule(
    name: str, options: dict[str, Any], rule: Rule, side: Side
) -> None:
    positions = torch.arange(N)
    allowed = mask(name, side, **options).allowed(positions, positions, token_mask())
    assert allowed.dtype == torch.bool
    table = allowed.broadcast_to(2, 1, N, N)
    for b, length in enumerate(LENGTHS):
        for query in range(N):
            for key in range(N):
                expected = rule(side, query, key, key < length)
                assert table[b, 0, query, key].item() is expected, (b, query, key)


def reach(states: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Return which states (rows) change with which token (columns), (T, T)."""
    before = states(tokens)
    moved = []
    for t in range(tokens.size(1)):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] - 3) % 46 + 4
        moved.append((states(changed) - before).abs().amax(dim=(0, 2)) > 0)
    return torch.stack(moved, dim=1)


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("window", [1, 3])
def test_the_receptive_field_of_a_local_token_grows_by_a_window_per_layer(
    n_layers: int, window: int
) -> None:
    choice = {"name": "local", "window": window}
    model = scrambled(tiny(mask=choice, n_layers=n_layers).double())
    src, tgt = ids(1, 12), ids(1, 12, seed=2)
    distance = torch.arange(12)[:, None] - torch.arange(12)[None, :]
    far = n_layers * window
    assert torch.equal(reach(lambda x: model.encode(x).states, src), distance.abs() <= far)
    memory = model.encode(src)
    decoded = reach(lambda x: model.hidden(x, memory), tgt)
    assert torch.equal(decoded, (distance >= 0) & (distance <= far))


def test_hiding_target_padding_changes_nothing_but_padding() -> None:
    src, tgt = ids(2, 9), ids(2, 8)
    src[1, 6:] = tgt[1, 5:] = PAD
    plain, hiding = (scrambled(tiny(mask=m)) for m in ("causal", "causal_padding"))
    assert torch.equal(hiding.encode(src).states, plain.encode(src).states)
    left, right = hiding(src, tgt), plain(src, tgt)
    assert torch.equal(left[tgt != PAD], right[tgt != PAD])
    assert not torch.isclose(left[tgt == PAD], right[tgt == PAD]).all(dim=-1).any()


def test_no_window_restricts_cross_attention() -> None:
    model = scrambled(tiny(decoder={"mask": {"name": "local", "window": 1}}, n_layers=1).double())
    src, tgt = ids(1, 12), ids(1, 4)
    before = model(src, tgt)
    for s in range(12):
        changed = src.clone()
        changed[:, s] = (changed[:, s] - 3) % 46 + 4
        assert (model(changed, tgt) - before).abs().amax(dim=(0, 2)).min() > 0


@pytest.mark.parametrize("every", [2, 3])
def test_local_global_sees_everything_in_one_of_so_many_layers(every: int) -> None:
    part = mask("local_global", "decoder", window=2, every=every)
    where, is_token = torch.arange(N), torch.ones(1, 1, 1, N, dtype=torch.bool)
    for layer in range(6):
        name = "causal" if layer in range(every - 1, 6, every) else "local"
        options = {"window": 2} if name == "local" else {}
        expected = mask(name, "decoder", **options).allowed(where, where, is_token)
        assert torch.equal(part.at_layer(layer).allowed(where, where, is_token), expected), layer
