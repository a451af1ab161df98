"""Encodings of distance, each against its formula written out pair by pair."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.parts.dims import Dims, Side, StackInfo
from ablate.parts.position import Position
from ablate.registry import RefusedError, build, choose
from tests.parts.tensors import numbers
from tests.tiny import tiny

B, K, V = 2, 5, 3
N_ENCODER, N_DECODER = 2, 3


def dims(n_heads: int = 4, **changes: int) -> Dims:
    return Dims.model_validate(
        {"d_model": 8, "n_heads": n_heads, "max_len": 64, "d_k": K, "d_v": V} | changes
    )


def make(name: str, side: Side = "encoder", n_heads: int = 4, **options: Any) -> Position:
    torch.manual_seed(0)
    stack_info = StackInfo(side=side, n_encoder_layers=N_ENCODER, n_decoder_layers=N_DECODER)
    return build(Position, choose(Position, name, **options), dims(n_heads), stack_info).double()


def bias(part: Position, queries: list[int], keys: list[int], layer: int = 0) -> Tensor:
    """Return the bias of queries full of ones, for one sentence, (H, T, S)."""
    q = torch.ones(1, 4, len(queries), K, dtype=torch.float64)
    scores = part.bias(q, torch.tensor(queries), torch.tensor(keys), layer)
    assert scores is not None
    return scores.expand(1, -1, -1, -1)[0].detach()


def pairs(queries: list[int], keys: list[int]) -> list[tuple[int, int, int, int]]:
    """Return every (row, column, query position, key position)."""
    rows, columns = enumerate(queries), list(enumerate(keys))
    return [(t, s, i, j) for (t, i), (s, j) in itertools.product(rows, columns)]


PLACES = [
    (list(range(9)), list(range(9))),
    ([8], list(range(9))),
    ([3, 7], list(range(12))),
    (list(range(20)), list(range(20))),
]


# Shaw et al. 2018


def shaw_tables(part: Position) -> list[Tensor]:
    return [p.detach() for p in part.parameters()]


@pytest.mark.parametrize(("queries", "keys"), PLACES)
@pytest.mark.parametrize("k", [1, 4, 16])
def test_shaw_adds_the_vector_of_the_distance_to_keys_and_values(
    k: int, queries: list[int], keys: list[int]
) -> None:
    part = make("shaw", k=k)
    for_keys, for_values = shaw_tables(part)
    q, w = numbers(B, 4, len(queries), K), numbers(B, 4, len(queries), len(keys), seed=2)
    for layer in range(N_ENCODER):
        scores = torch.zeros(B, 4, len(queries), len(keys), dtype=torch.float64)
        added = torch.zeros(B, 4, len(queries), V, dtype=torch.float64)
        for t, s, i, j in pairs(queries, keys):
            row = sorted((-k, j - i, k))[1] + k
            scores[:, :, t, s] = (q[:, :, t] * for_keys[layer, row]).sum(dim=-1)
            added[:, :, t] += w[:, :, t, s, None] * for_values[layer, row]
        where = torch.tensor(queries), torch.tensor(keys)
        torch.testing.assert_close(part.bias(q, *where, layer), scores, atol=1e-13, rtol=0)
        torch.testing.assert_close(part.values(w, *where, layer), added, atol=1e-13, rtol=0)


@pytest.mark.parametrize(("side", "n_layers"), [("encoder", N_ENCODER), ("decoder", N_DECODER)])
def test_shaw_has_two_tables_for_each_layer(side: Side, n_layers: int) -> None:
    part = make("shaw", side, k=6)
    shapes = [p.shape for p in part.parameters()]
    assert shapes == [(n_layers, 13, K), (n_layers, 13, V)]
    assert shaw_tables(make("shaw"))[0].shape == (N_ENCODER, 33, K)


def test_shaw_may_leave_values_alone() -> None:
    part = make("shaw", values=False)
    assert [p.shape for p in part.parameters()] == [(N_ENCODER, 33, K)]
    where = torch.arange(4)
    assert part.values(numbers(B, 4, 4, 4), where, where, 0) is None
    assert torch.equal(bias(part, [0, 1], [0, 1]), bias(make("shaw"), [0, 1], [0, 1]))


def test_shaw_starts_each_layer_with_xaviers_uniform() -> None:
    stack_info = StackInfo(side="encoder", n_encoder_layers=3, n_decoder_layers=1)
    wide = dims(d_k=300, d_v=200)
    torch.manual_seed(0)
    tables = shaw_tables(build(Position, choose(Position, "shaw", k=100), wide, stack_info))
    for table, width in zip(tables, (300, 200), strict=True):
        bound = math.sqrt(6 / (201 + width))
        assert table.abs().max().item() == pytest.approx(bound, rel=1e-3)
        assert table.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
        assert not torch.allclose(table[0], table[1])


# T5


def buckets(part: Position, distances: list[int]) -> list[int]:
    """Return which row of the table every distance, key minus query, leads to."""
    (table,) = part.parameters()
    with torch.no_grad():
        table.copy_(torch.arange(len(table))[:, None].expand_as(table))
    return [int(bias(part, [1000], [1000 + d])[0, 0, 0]) for d in distances]


GOLDEN_BOTH_WAYS = {
    -200: 15, -128: 15, -64: 14, -20: 10, -9: 8, -8: 8, -7: 7, -1: 1, 0: 0, 1: 17, 7: 23, 8: 24,
    9: 24, 20: 26, 64: 30, 128: 31, 200: 31,
}  # fmt: skip
GOLDEN_BACK = {
    -200: 31, -64: 26, -33: 21, -17: 16, -16: 16, -15: 15, -1: 1, 0: 0, 1: 0, 50: 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("side", "golden"), [("encoder", GOLDEN_BOTH_WAYS), ("decoder", GOLDEN_BACK)]
)
def test_t5_buckets_are_those_of_t5(side: Side, golden: dict[int, int]) -> None:
    assert buckets(make("t5", side), list(golden)) == list(golden.values())


def bucket_behind(distance: int, n: int, max_distance: int) -> int:
    """Return the bucket of a key so far behind, of n, without a rounding error.

    Past e = n // 2 the formula is e + floor(log(distance / e) / log(max_distance / e) * (n - e)),
    whose floor is the largest step with (distance / e)^(n - e) >= (max_distance / e)^step.
    """
    e = n // 2
    if distance < e:
        return distance
    wide = n - e
    reached = [
        step
        for step in range(wide)
        if distance**wide * e**step >= max_distance**step * e**wide
    ]  # fmt: skip
    return e + reached[-1]


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("n_buckets", "max_distance"),
    [(32, 128), (4, 3), (4, 128), (6, 9), (8, 20), (20, 320), (40, 320), (10, 128), (32, 17)],
)
def test_t5_buckets_follow_the_logarithm(side: Side, n_buckets: int, max_distance: int) -> None:
    part = make("t5", side, n_buckets=n_buckets, max_distance=max_distance)
    distances = list(range(-max_distance - 50, max_distance + 50))
    n = n_buckets if side == "decoder" else n_buckets // 2
    expected = []
    for d in distances:
        if side == "decoder":
            expected.append(bucket_behind(max(-d, 0), n, max_distance))
        else:
            expected.append(bucket_behind(abs(d), n, max_distance) + (n if d > 0 else 0))
    assert buckets(part, distances) == expected


@pytest.mark.parametrize(("queries", "keys"), PLACES)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_t5_takes_the_number_of_bucket_and_head(
    side: Side, queries: list[int], keys: list[int]
) -> None:
    part = make("t5", side)
    (table,) = part.parameters()
    n = 32 if side == "decoder" else 16
    scores = bias(part, queries, keys)
    assert torch.equal(scores, bias(part, queries, keys, layer=1))
    for t, s, i, j in pairs(queries, keys):
        row = bucket_behind(max(i - j, 0) if side == "decoder" else abs(i - j), n, 128)
        row += n if side == "encoder" and j > i else 0
        assert torch.equal(scores[:, t, s], table[row])


def test_t5_has_one_table_for_all_layers() -> None:
    assert [p.shape for p in make("t5").parameters()] == [(32, 4)]
    assert [p.shape for p in make("t5", "decoder", n_buckets=8).parameters()] == [(8, 4)]


def test_t5_starts_with_the_variance_of_one_over_the_width() -> None:
    stack_info = StackInfo(side="encoder", n_encoder_layers=1, n_decoder_layers=1)
    wide = Dims.model_validate({"d_model": 900, "n_heads": 300, "max_len": 8})
    torch.manual_seed(0)
    part = build(Position, choose(Position, "t5"), wide, stack_info)
    (table,) = part.parameters()
    assert table.std().item() == pytest.approx(1 / 30, rel=0.02)
    assert table.mean().item() == pytest.approx(0.0, abs=1e-3)


# ALiBi

SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    5: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    7: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125, 2**-5],
    8: [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625],
    12: [2**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    16: [2 ** (-h / 2) for h in range(1, 17)],
}


@pytest.mark.parametrize("n_heads", SLOPES)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_alibi_slopes_are_those_of_the_authors(side: Side, n_heads: int) -> None:
    at_distance_1 = bias(make("alibi", side, n_heads), [5], [4])[:, 0, 0]
    by_hand = torch.tensor(SLOPES[n_heads], dtype=torch.float64)
    torch.testing.assert_close(-at_distance_1, by_hand, atol=3e-8, rtol=0)


@pytest.mark.parametrize(("queries", "keys"), PLACES)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_alibi_falls_with_the_distance_on_both_sides(
    side: Side, queries: list[int], keys: list[int]
) -> None:
    scores = bias(make("alibi", side, 6), queries, keys, layer=1)
    assert scores.shape == (6, len(queries), len(keys))
    for (t, s, i, j), h in itertools.product(pairs(queries, keys), range(6)):
        assert scores[h, t, s] == -SLOPES[6][h] * abs(i - j)


@pytest.mark.parametrize(("queries", "keys"), PLACES)
@pytest.mark.parametrize("n_heads", [2, 6, 8])
def test_asymmetric_alibi_gives_half_of_the_heads_to_each_side(
    n_heads: int, queries: list[int], keys: list[int]
) -> None:
    scores = bias(make("alibi", n_heads=n_heads, encoder="asymmetric"), queries, keys)
    half = n_heads // 2
    for (t, s, i, j), h in itertools.product(pairs(queries, keys), range(n_heads)):
        looks_there = j <= i if h < half else j >= i
        expected = -SLOPES[half][h % half] * abs(i - j) if looks_there else -1e9
        assert scores[h, t, s] == expected


@pytest.mark.parametrize("n_heads", [1, 6])
def test_the_decoders_alibi_is_the_same_for_both_encoders(n_heads: int) -> None:
    one, other = (make("alibi", "decoder", n_heads, encoder=e) for e in ("symmetric", "asymmetric"))
    positions = list(range(9))
    assert torch.equal(bias(one, positions, positions), bias(other, positions, positions))


# All of them


@pytest.mark.parametrize("residual", ["post", "realformer"])
def test_asymmetric_alibi_is_refused_where_scores_of_heads_are_mixed(residual: str) -> None:
    alibi = {"name": "alibi", "encoder": "asymmetric"}
    with pytest.raises(RefusedError, match=r"hides keys .* and attention: talking_heads mixes"):
        tiny(position=alibi, attention="talking_heads", residual=residual)
    assert tiny(position=alibi, attention="full", residual=residual)
    assert tiny(position="alibi", attention="talking_heads")
    assert tiny(position=alibi, decoder={"attention": "talking_heads"})
    with pytest.raises(RefusedError, match=r"model\.encoder\.position: asymmetric"):
        tiny(position="none", encoder={"position": alibi, "attention": "talking_heads"})


def test_asymmetric_alibi_is_refused_where_keys_are_counted() -> None:
    alibi = {"name": "alibi", "encoder": "asymmetric"}
    with pytest.raises(RefusedError, match=r"hides keys .* and attention: sigmoid counts all keys"):
        tiny(position=alibi, attention="sigmoid")
    assert tiny(position="alibi", attention="sigmoid")
    assert tiny(position=alibi, decoder={"attention": "sigmoid"})


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_kerple_by_hand(side: Side) -> None:
    stack_info = StackInfo(side=side, n_encoder_layers=2, n_decoder_layers=3)
    dims = Dims.model_validate({"d_model": 12, "n_heads": 3, "max_len": 16})
    part: Any = build(Position, choose(Position, "kerple"), dims, stack_info).double()
    assert part.factors.shape == part.slopes.shape == (stack_info.n_layers, 3)
    with torch.no_grad():
        part.factors[1] = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)
        part.slopes[1] = torch.tensor([0.3, 0.001, 1.5], dtype=torch.float64)
    q = torch.zeros(1, 3, 2, 4, dtype=torch.float64)
    bias = part.bias(q, torch.tensor([4, 7]), torch.arange(9), 1)
    for head, (a, b) in enumerate([(0.5, 0.3), (2.0, 0.01), (0.01, 1.5)]):
        for row, i in enumerate((4, 7)):
            expected = [-a * math.log(1 + b * abs(i - j)) for j in range(9)]
            assert bias[head, row].tolist() == pytest.approx(expected, abs=1e-12)
    bias.sum().backward()
    distances = [abs(i - j) for i in (4, 7) for j in range(9)]
    of_factor = [-sum(math.log(1 + b * d) for d in distances) for b in (0.3, 0.01)]
    of_slope = [-sum(a * d / (1 + b * d) for d in distances) for a, b in ((0.5, 0.3), (0.01, 1.5))]
    assert part.factors.grad[1].tolist() == pytest.approx([*of_factor, 0.0])
    assert part.slopes.grad[1].tolist() == pytest.approx([of_slope[0], 0.0, of_slope[1]])


def test_kerple_starts_between_its_bounds_for_every_layer_and_head() -> None:
    stack_info = StackInfo(side="encoder", n_encoder_layers=50, n_decoder_layers=1)
    dims = Dims.model_validate({"d_model": 40, "n_heads": 20, "max_len": 16})
    part: Any = build(Position, choose(Position, "kerple"), dims, stack_info)
    for drawn, highest in ((part.factors, 2.0), (part.slopes, 1.0)):
        assert 0 <= drawn.min() < 0.01 * highest
        assert 0.99 * highest < drawn.max() <= highest
