"""Position encodings: the contract every one keeps, and what each one promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.parts.dims import Dims
from ablate.parts.position import Position, Sinusoidal
from ablate.registry import build, choose, slots

DIMS = Dims.model_validate({"d_model": 32, "n_heads": 4, "max_len": 64})
WIDE = Dims.model_validate({"d_model": 512, "n_heads": 8, "max_len": 100})
B, H, T, K = 2, DIMS.n_heads, 10, DIMS.d_k

# What the second notebook prints of PE(2) and PE(10): the first and the last dimensions of 512.
HEAD_2 = """
9.09297407e-01 -4.16146845e-01 9.58144367e-01 -2.86285430e-01
9.87046242e-01 -1.60435960e-01 9.99164224e-01 -4.08766568e-02
9.97479975e-01 7.09482506e-02 9.84703004e-01 1.74241230e-01
9.63226616e-01 2.68690288e-01 9.35118318e-01 3.54335666e-01
9.02130723e-01 4.31462824e-01 8.65725577e-01 5.00518918e-01
8.27103794e-01 5.62049210e-01 7.87237823e-01 6.16649508e-01
7.46903539e-01 6.64932430e-01 7.06710517e-01 7.07502782e-01
""".split()
TAIL_2 = """
5.47683925e-08 1.00000000e+00 5.09659337e-08 1.00000000e+00
4.74274735e-08 1.00000000e+00 4.41346799e-08 1.00000000e+00
4.10704999e-08 1.00000000e+00 3.82190599e-08 1.00000000e+00
3.55655878e-08 1.00000000e+00 3.30963417e-08 1.00000000e+00
3.07985317e-08 1.00000000e+00 2.86602511e-08 1.00000000e+00
2.66704294e-08 1.00000000e+00 2.48187551e-08 1.00000000e+00
2.30956392e-08 1.00000000e+00 2.14921574e-08 1.00000000e+00
""".split()
HEAD_10 = """
-5.44021130e-01 -8.39071512e-01 1.18776485e-01 -9.92920995e-01
6.92634165e-01 -7.21289039e-01 9.79174793e-01 -2.03019097e-01
9.37632740e-01 3.47627431e-01 6.40478015e-01 7.67976522e-01
2.09077001e-01 9.77899194e-01 -2.37917677e-01 9.71285343e-01
-6.12936735e-01 7.90131986e-01 -8.67519796e-01 4.97402608e-01
-9.87655997e-01 1.56638563e-01 -9.83699203e-01 -1.79821849e-01
""".split()
TAIL_10 = """
2.73841977e-07 1.00000000e+00 2.54829672e-07 1.00000000e+00
2.37137371e-07 1.00000000e+00 2.20673414e-07 1.00000000e+00
2.05352507e-07 1.00000000e+00 1.91095296e-07 1.00000000e+00
1.77827943e-07 1.00000000e+00 1.65481708e-07 1.00000000e+00
1.53992659e-07 1.00000000e+00 1.43301250e-07 1.00000000e+00
1.33352145e-07 1.00000000e+00 1.24093773e-07 1.00000000e+00
1.15478201e-07 1.00000000e+00 1.07460785e-07 1.00000000e+00
""".split()


@pytest.fixture(params=sorted(slots()["position"]))
def position(request: pytest.FixtureRequest) -> Position:
    """Each registered encoding in turn: a new one is tested without a line here."""
    return build(Position, choose(Position, request.param), DIMS)


def sinusoidal(dims: Dims = WIDE, **options: Any) -> Tensor:
    part = build(Position, choose(Position, "sinusoidal", **options), dims)
    assert isinstance(part, Sinusoidal)
    return part.table


def test_hooks_keep_their_shapes(position: Position) -> None:
    x, where = torch.randn(B, T, DIMS.d_model), torch.arange(T)
    assert position.embed(x, where).shape == x.shape
    assert position.rotate(torch.randn(B, H, T, K), where).shape == (B, H, T, K)
    bias = position.bias(where, torch.arange(T + 3))
    assert bias is None or bias.shape == (H, T, T + 3)


def test_one_token_is_treated_as_in_the_whole_sequence(position: Position) -> None:
    x, where = torch.randn(B, T, DIMS.d_model), torch.arange(T)
    one_by_one = [position.embed(x[:, t : t + 1], where[t : t + 1]) for t in range(T)]
    assert torch.equal(torch.cat(one_by_one, dim=1), position.embed(x, where))


def test_literal_2i_prints_what_the_notebook_prints() -> None:
    table = sinusoidal(exponent="literal_2i")
    for row, head, tail in ((2, HEAD_2, TAIL_2), (10, HEAD_10, TAIL_10)):
        printed = [f"{value:.8e}" for value in table[row].tolist()]
        assert printed[: len(head)] == head
        assert printed[-len(tail) :] == tail


@pytest.mark.parametrize(
    ("exponent", "layout", "cosine"),
    [
        ("literal_2i", "interleaved", 0.8600013),
        ("paper", "interleaved", 0.7225201),
        ("paper", "halves", 0.7225201),
        ("t2t", "halves", 0.7235945),
    ],
)
def test_cosine_of_positions_2_and_10(exponent: str, layout: str, cosine: float) -> None:
    table = sinusoidal(exponent=exponent, layout=layout)
    assert round(F.cosine_similarity(table[2], table[10], dim=0).item(), 7) == cosine


@pytest.mark.parametrize(
    ("options", "row", "values"),
    [
        ({}, 1, [0.841470985, 0.540302306, 0.821856190, 0.569695009]),
        ({}, 10, [-0.544021111, -0.839071529, -0.220023185, -0.975494643]),
        ({"layout": "halves"}, 1, [0.841470985, 0.821856190, 0.801961795, 0.781887114]),
        (
            {"layout": "halves", "exponent": "t2t"},
            1,
            [0.841470985, 0.821778650, 0.801804926, 0.781650231],
        ),
    ],
)
def test_sinusoidal_first_dimensions(
    options: dict[str, Any], row: int, values: list[float]
) -> None:
    torch.testing.assert_close(
        sinusoidal(**options)[row, :4], torch.tensor(values), atol=6e-8, rtol=0
    )


def test_sinusoidal_of_four_dimensions() -> None:
    table = sinusoidal(Dims.model_validate({"d_model": 4, "n_heads": 1, "max_len": 3}))
    by_hand = [
        [0.0, 1.0, 0.0, 1.0],
        [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
        [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
    ]
    torch.testing.assert_close(table, torch.tensor(by_hand), atol=6e-8, rtol=0)


def test_halves_are_a_permutation_of_interleaved() -> None:
    interleaved, halves = sinusoidal(), sinusoidal(layout="halves")
    assert torch.equal(torch.cat((interleaved[:, 0::2], interleaved[:, 1::2]), dim=-1), halves)


def test_literal_2i_takes_every_second_frequency_of_the_paper() -> None:
    literal, paper = sinusoidal(exponent="literal_2i", layout="halves"), sinusoidal(layout="halves")
    torch.testing.assert_close(literal[:, :128], paper[:, 0:256:2], atol=6e-8, rtol=0)


def test_a_shift_is_a_rotation_of_every_pair() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        table, shift = sinusoidal(), 7
    finally:
        torch.set_default_dtype(torch.float32)
    sin, cos = table[:, 0::2], table[:, 1::2]
    moved = sin[:-shift] * cos[shift] + cos[:-shift] * sin[shift]
    torch.testing.assert_close(sin[shift:], moved, atol=1e-12, rtol=0)


@pytest.mark.parametrize("exponent", ["paper", "literal_2i", "t2t"])
def test_sinusoids_have_one_length_and_know_only_distance(exponent: str) -> None:
    table = sinusoidal(exponent=exponent)
    torch.testing.assert_close(table.square().sum(dim=-1), torch.full((100,), 256.0))
    torch.testing.assert_close(table[2] @ table[10], table[50] @ table[58], atol=1e-3, rtol=0)


def test_frequencies_fall_from_1_to_the_inverse_of_base() -> None:
    sines = sinusoidal()[1, 0::2]
    assert bool((sines[1:].asin() < sines[:-1].asin()).all())
    torch.testing.assert_close(sines[-1].item(), 1.0366e-4, atol=1e-8, rtol=0)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_an_odd_width_loses_its_last_cosine(layout: str) -> None:
    dims = Dims.model_validate({"d_model": 5, "n_heads": 1, "max_len": 9})
    assert sinusoidal(dims, layout=layout).shape == (9, 5)


def test_sinusoidal_has_nothing_to_train_and_nothing_to_save() -> None:
    part = build(Position, choose(Position, "sinusoidal"), DIMS)
    assert not list(part.parameters())
    assert not part.state_dict()


def test_learned_has_one_vector_per_position() -> None:
    part = build(Position, choose(Position, "learned"), WIDE)
    assert sum(p.numel() for p in part.parameters()) == WIDE.max_len * WIDE.d_model
    std = next(part.parameters()).std().item()
    assert std == pytest.approx(512**-0.5, rel=0.02)
