"""Encodings added to embeddings, against the goldens and against each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.parts.dims import Dims, StackInfo
from ablate.parts.position import Position
from ablate.registry import build, choose

WIDE = Dims.model_validate({"d_model": 512, "n_heads": 8, "max_len": 100})
STAGE = StackInfo(side="encoder", n_encoder_layers=2, n_decoder_layers=2)

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


def small(d_model: int, max_len: int = 12) -> Dims:
    return Dims.model_validate({"d_model": d_model, "n_heads": 1, "max_len": max_len})


def make(name: str, dims: Dims = WIDE, **options: Any) -> Position:
    torch.manual_seed(0)
    return build(Position, choose(Position, name, **options), dims, STAGE).eval()


def added(part: Position, dims: Dims = WIDE, n_rows: int = 1) -> Tensor:
    """Return what an encoding adds to zeros at every position, (n_rows, max_len, D)."""
    zeros = torch.zeros(n_rows, dims.max_len, dims.d_model)
    return part.embed(zeros, torch.arange(dims.max_len))


def sinusoidal(dims: Dims = WIDE, **options: Any) -> Tensor:
    return added(make("sinusoidal", dims, **options), dims)[0]


def waves(position: int, frequencies: list[float]) -> list[float]:
    """Return sine, cosine, sine, cosine ... of one position, by the formula."""
    return [f(position * w) for w in frequencies for f in (math.sin, math.cos)]


@pytest.mark.parametrize(
    ("d_model", "exponent", "frequencies"),
    [
        (2, "paper", [1.0]),
        (2, "t2t", [1.0]),
        (4, "paper", [1.0, 1 / 9]),
        (4, "literal_2i", [1.0, 1 / 81]),
        (4, "t2t", [1.0, 1 / 81]),
        (6, "t2t", [1.0, 1 / 9, 1 / 81]),
    ],
)
@pytest.mark.usefixtures("in_double")
def test_every_exponent_by_hand(d_model: int, exponent: str, frequencies: list[float]) -> None:
    table = sinusoidal(small(d_model), exponent=exponent, base=81.0)
    by_hand = torch.tensor([waves(p, frequencies) for p in range(12)])
    torch.testing.assert_close(table, by_hand, atol=1e-14, rtol=0)


def test_a_table_is_rounded_once_and_not_on_the_way() -> None:
    dims = small(6, max_len=30_000)
    by_hand = torch.tensor(waves(29_999, [10_000 ** (-k / 3) for k in range(3)]))
    torch.testing.assert_close(sinusoidal(dims)[-1], by_hand, atol=6e-8, rtol=0)


def test_positions_may_begin_later() -> None:
    assert torch.equal(sinusoidal(first=3)[:-3], sinusoidal()[3:])
    assert len(sinusoidal(first=3)) == len(sinusoidal())


@pytest.mark.parametrize("d_model", [8, 9])
def test_fairseqs_table_begins_at_its_row_2_and_ends_an_odd_width_in_zeros(d_model: int) -> None:
    """Rows that SinusoidalPositionalEmbedding(8, padding_idx=1) of version 0.12.3 adds first.

    Of width 9 get_embedding makes the same 9 // 2 frequencies, and pads a column of zeros.
    """
    narrow = WIDE.model_copy(update={"d_model": d_model, "n_heads": 1})
    layout = "padded_halves" if d_model % 2 else "halves"
    options = {"exponent": "t2t", "layout": layout, "first": 2}
    fairseq = build(Position, choose(Position, "sinusoidal", **options), narrow, STAGE)
    rows = [
        [0.90929741, 0.09269851, 0.00430886, 0.00020000, -0.41614684, 0.99569422, 0.99999070, 1.0],
        [0.14112000, 0.13879810, 0.00646326, 0.00030000, -0.98999250, 0.99032068, 0.99997914, 1.0],
        [-0.75680250, 0.18459873, 0.00861763, 0.0004, -0.65364361, 0.98281395, 0.99996287, 1.0],
    ]
    added = fairseq.embed(torch.zeros(1, 3, d_model), torch.arange(3))[0]
    torch.testing.assert_close(added[:, :8], torch.tensor(rows), rtol=0, atol=2e-7)
    assert not added[:, 8:].any()


def test_halves_are_a_permutation_of_interleaved() -> None:
    interleaved, halves = sinusoidal(), sinusoidal(layout="halves")
    assert torch.equal(torch.cat((interleaved[:, 0::2], interleaved[:, 1::2]), dim=-1), halves)


def test_literal_2i_takes_every_second_frequency_of_the_paper() -> None:
    literal, paper = sinusoidal(exponent="literal_2i", layout="halves"), sinusoidal(layout="halves")
    torch.testing.assert_close(literal[:, :128], paper[:, 0:256:2], atol=6e-8, rtol=0)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_an_odd_width_loses_its_last_cosine(layout: str) -> None:
    whole = torch.tensor(waves(8, [10_000 ** (-2 * k / 5) for k in range(3)]))
    order = [0, 1, 2, 3, 4] if layout == "interleaved" else [0, 2, 4, 1, 3]
    code = sinusoidal(small(5), layout=layout)[8]
    torch.testing.assert_close(code, whole[order], atol=6e-8, rtol=0)


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "learned_sinusoidal", "shifted"])
def test_a_code_is_added_to_the_embedding(name: str) -> None:
    part, x = make(name, small(6)), torch.randn(2, 12, 6)
    torch.testing.assert_close(part.embed(x, torch.arange(12)), x + added(part, small(6)))


def test_learned_has_one_vector_per_position() -> None:
    part = make("learned")
    assert sum(p.numel() for p in part.parameters()) == WIDE.max_len * WIDE.d_model
    assert added(part).std().item() == pytest.approx(512**-0.5, rel=0.02)
    assert added(part).mean().item() == pytest.approx(0.0, abs=1e-3)


def test_learned_adds_its_vectors_as_they_are() -> None:
    part = make("learned")
    (table,) = part.parameters()
    assert torch.equal(added(part)[0], table)


def test_learned_starts_with_its_standard_deviation() -> None:
    assert added(make("learned", init_std=0.5)).std().item() == pytest.approx(0.5, rel=0.02)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("base", [10_000.0, 50.0])
@pytest.mark.parametrize("d_model", [7, 512])
def test_learned_sinusoids_start_as_fixed_ones(d_model: int, base: float) -> None:
    dims = small(d_model, max_len=100)
    part = make("learned_sinusoidal", dims, base=base)
    assert sum(p.numel() for p in part.parameters()) == (d_model + 1) // 2
    expected = sinusoidal(dims, base=base)
    torch.testing.assert_close(added(part, dims)[0], expected, atol=1e-11, rtol=0)


@pytest.mark.usefixtures("in_double")
def test_learned_sinusoids_start_with_the_base_of_the_paper() -> None:
    frequencies = added(make("learned_sinusoidal"))[0]
    torch.testing.assert_close(frequencies, sinusoidal(), atol=1e-11, rtol=0)


@pytest.mark.usefixtures("in_double")
def test_learned_sinusoids_are_of_the_exponential_of_what_is_trained() -> None:
    dims = small(4)
    part = make("learned_sinusoidal", dims)
    (logs,) = part.parameters()
    with torch.no_grad():
        logs.copy_(torch.tensor([0.2, -1.3]))
    by_hand = [waves(p, [math.exp(0.2), math.exp(-1.3)]) for p in range(12)]
    torch.testing.assert_close(added(part, dims)[0], torch.tensor(by_hand), atol=1e-14, rtol=0)


@pytest.mark.parametrize("d_model", [7, 16])
def test_shifted_is_sinusoidal_in_evaluation(d_model: int) -> None:
    dims = small(d_model)
    part = make("shifted", dims, max_shift=5, base=50.0)
    assert torch.equal(added(part, dims)[0], sinusoidal(dims, base=50.0))


def test_shifted_has_the_base_and_the_shift_of_the_papers() -> None:
    assert torch.equal(added(make("shifted")), sinusoidal()[None])
    part = make("shifted", small(4, max_len=1)).train()
    torch.manual_seed(1)
    codes = added(part, small(4, max_len=1), n_rows=20_000)[:, 0]
    table = sinusoidal(small(4, max_len=501))
    assert set(map(tuple, codes.tolist())) == set(map(tuple, table.tolist()))


def test_shifted_moves_every_sequence_by_a_shift_of_its_own_in_training() -> None:
    dims, max_shift, n_rows = small(6), 3, 400
    part = make("shifted", dims, max_shift=max_shift).train()
    torch.manual_seed(1)
    codes = added(part, dims, n_rows)  # (400, 12, 6)
    table = sinusoidal(small(6, max_len=12 + max_shift))
    windows = torch.stack([table[s : s + 12] for s in range(max_shift + 1)])  # (4, 12, 6)
    is_same = (codes[:, None] == windows[None]).all(dim=-1).all(dim=-1)  # (400, 4)
    assert torch.equal(is_same.sum(dim=1), torch.ones(n_rows, dtype=torch.long))
    times = is_same.sum(dim=0)
    assert bool((times > 70).all())
    assert bool((times < 130).all())
