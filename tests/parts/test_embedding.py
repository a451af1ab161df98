"""Embeddings and initialisations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ablate.parts.dims import Dims
from ablate.parts.embedding import Embedding, Vocabulary
from ablate.registry import RefusedError, build, choose, slots
from tests.tiny import tiny

DIMS = Dims.model_validate({"d_model": 512, "n_heads": 8, "max_len": 8})
JOINT = Vocabulary(n_src=300, n_tgt=300, is_joint=True)
TINY_DIMS = {"d_model": 256, "n_heads": 4, "max_len": 16}


def embedding(name: str, vocabulary: Vocabulary = JOINT, **options: Any) -> Embedding:
    torch.manual_seed(0)
    return build(Embedding, choose(Embedding, name, **options), DIMS, vocabulary)


@pytest.mark.parametrize(("name", "n_matrices"), [("tied", 1), ("tied_target", 2), ("separate", 3)])
def test_tyings_differ_by_whole_matrices(name: str, n_matrices: int) -> None:
    n = sum(p.numel() for p in embedding(name).parameters())
    assert n == n_matrices * 300 * 512
    biased = sum(p.numel() for p in embedding(name, output_bias=True).parameters())
    assert biased == n + 300


@pytest.mark.parametrize("name", sorted(slots()["embedding"]))
def test_scaled_embeddings_start_with_unit_variance(name: str) -> None:
    part, ids = embedding(name), torch.arange(300)
    assert part.src(ids).std().item() == pytest.approx(1.0, abs=0.01)
    assert part.tgt(ids).std().item() == pytest.approx(1.0, abs=0.01)
    assert embedding(name, init_std=1.0).tgt(ids).std().item() == pytest.approx(22.6, abs=0.2)


@pytest.mark.parametrize("name", sorted(slots()["embedding"]))
def test_scale_is_the_root_of_the_width_and_nothing_else(name: str) -> None:
    ids = torch.arange(300)
    part, plain = embedding(name), embedding(name, scale="none")
    torch.testing.assert_close(part.src(ids), plain.src(ids) * 512**0.5)
    assert torch.equal(plain.tgt(ids), plain.tgt_table.weight)


def test_tied_equals_separate_with_copied_weights() -> None:
    tied, separate = embedding("tied"), embedding("separate")
    assert separate.src_table is not None
    assert separate.output is not None
    for other in (separate.src_table, separate.tgt_table, separate.output):
        other.load_state_dict({"weight": tied.tgt_table.weight})
    ids = torch.arange(20)
    assert torch.equal(tied.src(ids), separate.src(ids))
    assert torch.equal(tied.logits(tied.tgt(ids)), separate.logits(separate.tgt(ids)))


def test_two_vocabularies_have_tables_of_their_own() -> None:
    two = Vocabulary(n_src=30, n_tgt=70, is_joint=False)
    part = embedding("tied_target", two)
    assert part.src_table is not None
    assert part.src_table.weight.shape == (30, 512)
    assert part.logits(torch.randn(2, 512)).shape == (2, 70)
    with pytest.raises(RefusedError, match="tied needs one vocabulary for both languages"):
        embedding("tied", two)


def _linears(initialisation: Any) -> list[tuple[str, nn.Linear]]:
    model = tiny(
        dims=TINY_DIMS,
        feed_forward={"name": "relu", "d_ff": 512},
        embedding="separate",
        initialisation=initialisation,
    )
    return [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize(
    ("initialisation", "bound"),
    [
        ("xavier", lambda n, fan_in, fan_out: (6 / (fan_in + fan_out)) ** 0.5),
        ({"name": "xavier", "gain": 0.5}, lambda n, i, o: 0.5 * (6 / (i + o)) ** 0.5),
        (
            "xavier_packed",
            lambda n, i, o: (
                (6 / (i + o)) ** 0.5 * (0.5**0.5 if n[-2:] in (".q", ".k", ".v") else 1)
            ),
        ),
        ("torch", lambda n, fan_in, fan_out: fan_in**-0.5),
    ],
)
def test_uniform_initialisations_fill_their_bounds(initialisation: Any, bound: Any) -> None:
    for name, linear in _linears(initialisation):
        wanted = bound(name, linear.in_features, linear.out_features)
        largest = linear.weight.abs().max().item()
        assert 0.99 * wanted < largest <= wanted * (1 + 1e-6), name
        if initialisation != "torch" and linear.bias is not None:
            assert not linear.bias.any(), name


def test_packed_xavier_is_what_pytorch_gives_its_packed_matrix() -> None:
    packed = nn.MultiheadAttention(512, 8).in_proj_weight
    assert packed.abs().max().item() == pytest.approx((6 / (4 * 512)) ** 0.5, rel=1e-3)
    square = (6 / (512 + 512)) ** 0.5 * 0.5**0.5
    assert square == pytest.approx((6 / (4 * 512)) ** 0.5)


@pytest.mark.parametrize(
    ("initialisation", "std"), [("normal", 0.02), ({"name": "normal", "std": 0.1}, 0.1)]
)
def test_normal_has_its_spread(initialisation: Any, std: float) -> None:
    for name, linear in _linears(initialisation):
        assert linear.weight.std().item() == pytest.approx(std, rel=0.05), name


def test_tables_do_not_depend_on_the_initialisation() -> None:
    tables = {
        name: tiny(initialisation=name).embedding.tgt_table.weight.std().item()
        for name in slots()["initialisation"]
    }
    assert all(std == pytest.approx(32**-0.5, rel=0.1) for std in tables.values())
