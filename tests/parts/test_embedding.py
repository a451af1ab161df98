"""Embeddings: shared matrices, initial distributions, and transformations of word vectors."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.data.tokenizer import BOS, PAD
from ablate.parts import embedding as embedding_module
from ablate.parts.dims import Dims
from ablate.parts.embedding import Embedding, Vocabulary
from ablate.registry import RefusedError, build, choose, slots

D = 64
DIMS = Dims.model_validate({"d_model": D, "n_heads": 8, "max_len": 8})
JOINT = Vocabulary(n_src=300, n_tgt=300, is_joint=True)
TWO = Vocabulary(n_src=30, n_tgt=70, is_joint=False)
NAMES = sorted(slots()["embedding"])
IDS = torch.arange(300)


def embedding(name: str = "tied", vocabulary: Vocabulary = JOINT, **options: Any) -> Embedding:
    torch.manual_seed(0)
    return build(Embedding, choose(Embedding, name, **options), DIMS, vocabulary)


def states(n: int = 5) -> Tensor:
    """Return last hidden states (n, D)."""
    return torch.randn(n, D, generator=torch.Generator().manual_seed(1))


def n_parameters(part: nn.Module) -> int:
    return sum(p.numel() for p in part.parameters())


@pytest.mark.parametrize(("one", "other"), list(combinations(NAMES, 2)))
def test_with_equal_weights_all_tyings_have_equal_outputs(one: str, other: str) -> None:
    left, right = embedding(one, output_bias=True), embedding(other, output_bias=True)
    table, bias = states(300), torch.randn(300)
    for part in (left, right):
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.copy_(table if parameter.ndim == 2 else bias)
    assert torch.equal(left.src(IDS), right.src(IDS))
    assert torch.equal(left.tgt(IDS), right.tgt(IDS))
    assert torch.equal(left.logits(states()), right.logits(states()))


@pytest.mark.parametrize("name", NAMES)
def test_a_change_of_a_shared_table_changes_all_of_its_outputs(name: str) -> None:
    """Change one row of the target's table; compare all outputs."""
    part = embedding(name)
    before = part.src(IDS), part.tgt(IDS), part.logits(states())
    with torch.no_grad():
        part.tgt_table.weight[7] += 1.0
    after = part.src(IDS), part.tgt(IDS), part.logits(states())
    changed = tuple(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
    tied_source = name in ("tied", "tied_inputs")
    tied_output = name in ("tied", "tied_target")
    assert changed == (tied_source, True, tied_output)


def test_two_vocabularies_have_tables_of_their_own() -> None:
    for name in ("tied_target", "separate"):
        part = embedding(name, TWO)
        assert part.src_table is not None
        assert part.src_table.weight.shape == (30, D)
        assert part.logits(torch.randn(2, D)).shape == (2, 70)


@pytest.mark.parametrize("name", ["tied", "tied_inputs"])
def test_one_table_for_two_vocabularies_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="tied needs one vocabulary for both languages; set"):
        embedding(name, TWO)


def test_sizes_grow_as_in_the_table_of_narang_et_al() -> None:
    """Millions of parameters by which variants differ from the tied one; T5's sizes."""
    dims = Dims.model_validate({"d_model": 768, "n_heads": 12, "max_len": 8})
    vocabulary = Vocabulary(32_128, 32_128, is_joint=True)

    def millions(name: str, **options: Any) -> float:
        with torch.device("meta"):
            part = build(Embedding, choose(Embedding, name, **options), dims, vocabulary)
        return n_parameters(part) / 1e6

    tied = millions("tied")
    assert round(223 + millions("tied_inputs") - tied) == 248
    assert round(223 + millions("tied_target") - tied) == 248
    assert round(223 + millions("separate") - tied) in (272, 273)
    assert round(223 + millions("tied_inputs", rank=128) - tied) == 227
    assert round(223 + millions("tied", rank=128) - tied) in (202, 203)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"init": "uniform"}, {"rank": 24}, {"norm": True}])
def test_scaled_embeddings_start_with_unit_variance(name: str, options: dict[str, Any]) -> None:
    part = embedding(name, **options)
    assert part.src(IDS).std().item() == pytest.approx(1.0, abs=0.03)
    assert part.tgt(IDS).std().item() == pytest.approx(1.0, abs=0.03)
    wide = embedding(name, init_std=1.0, **options)
    assert wide.tgt(IDS).std().item() == pytest.approx(8.0, rel=0.03)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fixed", [{}, {"norm": True}, {"fix_norm": True}, {"rank": 24}])
def test_scale_is_a_factor_of_the_inputs_and_of_nothing_else(
    name: str, fixed: dict[str, Any]
) -> None:
    plain = embedding(name, scale="none", **fixed)
    for scale, factor in (("sqrt_d", 8.0), (2.5, 2.5)):
        part = embedding(name, scale=scale, **fixed)
        torch.testing.assert_close(part.src(IDS), plain.src(IDS) * factor)
        torch.testing.assert_close(part.tgt(IDS), plain.tgt(IDS) * factor)
        assert torch.equal(part.logits(states()), plain.logits(states()))


@pytest.mark.parametrize(
    ("options", "std"),
    [
        ({}, D**-0.5),
        ({"init_std": 0.02}, 0.02),
        ({"init": "uniform"}, D**-0.5),
        ({"init": "uniform", "init_std": 0.02}, 0.02),
        ({"init": "xavier"}, (2 / (300 + D)) ** 0.5),
    ],
)
def test_tables_start_as_their_distribution_says(options: dict[str, Any], std: float) -> None:
    weight = embedding(**options).tgt_table.weight.double()
    assert weight.mean().item() == pytest.approx(0.0, abs=3e-2 * std)
    assert weight.std().item() == pytest.approx(std, rel=0.02)
    kurtosis = (weight / weight.std()).pow(4).mean().item()
    assert kurtosis == pytest.approx(1.8 if "init" in options else 3.0, abs=0.12)
    if "init" in options:
        assert 0.99 * 3**0.5 * std < weight.abs().max().item() <= 3**0.5 * std * (1 + 1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rank", [None, 24])
def test_fixed_norm_uses_words_of_length_one(name: str, rank: int | None) -> None:
    part = embedding(name, fix_norm=True, rank=rank, output_bias=True)
    loose = embedding(name, rank=rank)
    bias = next(p for p in part.parameters() if p.shape == (300,))
    with torch.no_grad():
        bias.normal_()
    torch.testing.assert_close(part.src(IDS), 8.0 * F.normalize(loose.src(IDS), dim=-1))
    torch.testing.assert_close(part.tgt(IDS), 8.0 * F.normalize(loose.tgt(IDS), dim=-1))
    vectors = loose.logits(torch.eye(D)).T  # (300, D)
    expected = F.linear(states(), F.normalize(vectors, dim=-1), bias)
    torch.testing.assert_close(part.logits(states()), expected)


def test_a_word_vector_of_zeros_gives_numbers() -> None:
    for rank in (None, 24):
        part = embedding(fix_norm=True, rank=rank)
        nn.init.zeros_(part.tgt_table.weight)
        (part.tgt(IDS).sum() + part.logits(states()).sum()).backward()
        gradients = [p.grad for p in part.parameters() if p.grad is not None]
        assert gradients
        assert all(bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("name", NAMES)
def test_a_factorised_table_is_its_product(name: str) -> None:
    part, whole = embedding(name, rank=24), embedding(name)
    with torch.no_grad():
        for left, right in ((part.src_table, whole.src_table), (part.tgt_table, whole.tgt_table)):
            if left is not None and right is not None:
                assert left.projection is not None
                assert (left.weight.shape, left.projection.shape) == ((300, 24), (24, D))
                right.weight.copy_(left.weight @ left.projection)
        if part.output is not None and whole.output is not None:
            assert part.output.weight.shape == (300, D)
            whole.output.weight.copy_(part.output.weight)
    torch.testing.assert_close(part.src(IDS), whole.src(IDS))
    torch.testing.assert_close(part.tgt(IDS), whole.tgt(IDS))
    torch.testing.assert_close(part.logits(states()), whole.logits(states()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fixed", [{}, {"rank": 24}, {"init_std": 0.02}, {"init": "xavier"}])
def test_a_normed_embedding_is_pytorchs_layer_norm(name: str, fixed: dict[str, Any]) -> None:
    part, plain = embedding(name, norm=True, **fixed), embedding(name, scale="none", **fixed)
    std = (2 / (300 + D)) ** 0.5 if "init" in fixed else fixed.get("init_std", D**-0.5)
    for ours, theirs in ((part.src, plain.src), (part.tgt, plain.tgt)):
        expected = 8.0 * std * F.layer_norm(theirs(IDS).double(), (D,), eps=1e-5 * std**2)
        torch.testing.assert_close(ours(IDS).double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(part.logits(states()), plain.logits(states()))


@pytest.mark.parametrize("rank", [None, 24])
def test_a_normed_embedding_of_fixed_length_is_normed_after_it(rank: int | None) -> None:
    part = embedding(norm=True, fix_norm=True, rank=rank)
    norm, table = part.tgt_table.norm, part.tgt_table
    assert norm is not None
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    vectors = table.weight if table.projection is None else table.weight @ table.projection
    unit = F.normalize(vectors, dim=-1)
    std = D**-0.5
    normed = F.layer_norm(unit / std, (D,), norm.weight, norm.bias)
    torch.testing.assert_close(part.tgt(IDS), 8.0 * std * normed)


def test_each_table_has_a_norm_of_its_own() -> None:
    part = embedding("separate", norm=True)
    assert part.src_table is not None
    assert part.src_table.norm is not None
    assert n_parameters(part) == n_parameters(embedding("separate")) + 2 * 2 * D
    nn.init.zeros_(part.src_table.norm.weight)
    assert not part.src(IDS).any()
    assert part.tgt(IDS).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_bias_is_added_after_the_multiplier(name: str) -> None:
    part = embedding(name, output_bias=True)
    plain = part.logits(states())
    bias = next(p for p in part.parameters() if p.shape == (300,))
    assert not bias.any() or name in ("tied_inputs", "separate")
    with torch.no_grad():
        plain = plain - bias
        bias.copy_(torch.arange(300.0))
    part.output_multiplier = 0.25
    torch.testing.assert_close(part.logits(states()), 0.25 * plain + torch.arange(300.0))


@pytest.mark.parametrize("options", [{}, {"rank": 24}, {"fix_norm": True}, {"norm": True}])
def test_autocast_leaves_the_residual_stream_wide(options: dict[str, Any]) -> None:
    part = embedding(**options)
    with torch.autocast("cpu", torch.bfloat16):
        x, logits = part.tgt(IDS), part.logits(states())
    assert (x.dtype, logits.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(x, part.tgt(IDS), atol=0.05, rtol=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_that_are_never_written_can_have_no_probability(name: str) -> None:
    masked, plain = embedding(name, mask_unwritten=True), embedding(name)
    x = states().requires_grad_()
    logits = masked.logits(x)
    assert (PAD, BOS) == (0, 1)
    assert torch.equal(logits[:, 2:], plain.logits(x)[:, 2:])
    p = logits.softmax(dim=-1)
    assert p[:, [PAD, BOS]].tolist() == [[0.0, 0.0]] * 5
    torch.testing.assert_close(p[:, 2:], plain.logits(x)[:, 2:].softmax(dim=-1))
    logits[:, [PAD, BOS]].sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_so_many_rows_of_logits_are_made_as_their_bytes_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = embedding()
    monkeypatch.setattr(embedding_module, "_LOGITS_BYTES", {"cpu": 400 * part.n_tgt + 3})
    monkeypatch.setattr(embedding_module, "_MIN_ROWS", 7)
    cpu = torch.device("cpu")
    assert part.rows_at_once(cpu) == 100
    monkeypatch.setattr(embedding_module, "_LOGITS_BYTES", {"cpu": 0})
    assert part.rows_at_once(cpu) == 7


def test_fixed_norms_are_of_each_vector_of_a_batch() -> None:
    part, ids = embedding(fix_norm=True, scale="none"), torch.arange(8).view(2, 4)
    weight = part.tgt_table.weight
    expected = weight / weight.square().sum(dim=1, keepdim=True).sqrt()
    torch.testing.assert_close(part.src(ids), expected[ids])
