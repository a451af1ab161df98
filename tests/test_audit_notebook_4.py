"""What notebook 4 is and does, line by line: S4.1 to S4.9 of the audit."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ablate import config
from ablate.config import RunSpec
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from tests import notebook_4
from tests.parts import test_attention as attentions
from tests.presets import PAD, ROOT, built, load
from tests.tiny import scrambled

TEN = Vocabulary(n_src=10, n_tgt=10, is_joint=False)
SRC = torch.tensor([[1, 5, 6, 4, 3, 9, 5, 2, 0], [1, 8, 7, 3, 4, 5, 6, 7, 2]])
TGT = torch.tensor([[1, 7, 4, 3, 5, 9, 2, 0], [1, 5, 6, 2, 4, 7, 6, 2]])
"""The batch of the notebook's demonstration."""


@functools.cache
def demonstration() -> Transformer:
    return built("notebook_4", TEN)


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def test_s4_1_the_demonstration_has_its_shape() -> None:
    assert demonstration()(SRC, TGT[:, :-1]).shape == torch.Size([2, 7, 10])


def test_s4_2_the_demonstration_has_its_parameters() -> None:
    model = demonstration()
    assert count(model) == 7_616_010
    assert 10 * 256 + count(model.encoder) == 3_599_360
    assert 10 * 256 + count(model.decoder) + 10 * 256 + 10 == 4_016_650


def test_s4_3_a_state_dict_of_the_notebook_loads_and_gives_its_logits() -> None:
    sizes = notebook_4.Sizes()
    weights = notebook_4.drawn(sizes)
    model = built("notebook_4", TEN)
    model.load_state_dict(notebook_4.renamed(weights))
    theirs = notebook_4.logits(weights, sizes, SRC, TGT[:, :-1])
    assert theirs.std() > 0.5
    torch.testing.assert_close(model(SRC, TGT[:, :-1]), theirs, atol=1e-5, rtol=0)
    exact = notebook_4.logits({n: w.double() for n, w in weights.items()}, sizes, SRC, TGT[:, :-1])
    torch.testing.assert_close(model.double()(SRC, TGT[:, :-1]), exact, atol=1e-12, rtol=0)


CHOICES = {
    "projections": {"model.attention"},
    "scaling": {"model.scaling"},
    "dropout place": {"model.residual"},
    "positions": {"model.position"},
    "embedding scale": {"model.embedding.scale"},
    "tying": {"tokenizer.joint", "model.embedding"},
    "output bias": {"model.embedding.output_bias"},
    "target padding": {"model.mask"},
    "attention dropout": {"model.dropout.attention"},
}


@pytest.mark.parametrize("row", CHOICES)
def test_s4_4_each_choice_can_be_switched_alone(row: str) -> None:
    rows = {each.name: each for each in load("notebook_4_to_vaswani").rows}
    assert set(rows[row].changes) == CHOICES[row]
    differs = {
        is_training: not torch.equal(
            *(_outcome(rows[name].spec, is_training=is_training) for name in ("baseline", row))
        )
        for is_training in (False, True)
    }
    is_seen = row != "target padding"  # S4.6: of the tokens that count, it changes none
    is_seen_in_evaluation = is_seen and "dropout" not in row
    assert differs == {False: is_seen_in_evaluation, True: is_seen}


def _outcome(run: RunSpec, *, is_training: bool) -> Tensor:
    """Return the logits of a run's model for real tokens, with weights that its names decide."""
    words = Vocabulary(n_src=10, n_tgt=10, is_joint=run.tokenizer.options["joint"])
    torch.manual_seed(0)
    model = scrambled(assemble(run.model, words, PAD)).train(is_training)
    torch.manual_seed(1)
    return model(SRC, TGT)[TGT != PAD]


def test_s4_5_shared_projections_are_full_ones_with_equal_blocks() -> None:
    attentions.test_per_head_shared_is_full_with_block_diagonal_weights("sqrt_dk")


def test_s4_6_target_padding_need_not_be_masked() -> None:
    model, masked = demonstration(), built("notebook_4", TEN, mask="causal_padding")
    masked.load_state_dict(model.state_dict())
    padded = torch.cat((TGT[1:], torch.zeros(1, 4, dtype=torch.long)), dim=1)
    short, long, hidden = model(SRC[1:], TGT[1:]), model(SRC[1:], padded), masked(SRC[1:], padded)
    assert torch.equal(long[:, :8], hidden[:, :8])
    torch.testing.assert_close(long[:, :8], short, atol=1e-5, rtol=0)
    assert not torch.equal(long[:, 8:], hidden[:, 8:])


def test_s4_7_a_source_of_padding_gives_numbers_and_101_tokens_are_refused() -> None:
    nothing = torch.zeros_like(SRC)
    weights, sizes = notebook_4.drawn(notebook_4.Sizes()), notebook_4.Sizes()
    assert notebook_4.logits(weights, sizes, nothing, TGT).isnan().all()
    assert demonstration()(nothing, TGT).isfinite().all()
    for src, tgt in ((101, 5), (5, 101)):
        with pytest.raises(ValueError, match=r"of 101 tokens is longer than .*max_len \(100\)"):
            demonstration()(torch.ones(1, src).long(), torch.ones(1, tgt).long())


def test_s4_8_heads_must_divide_the_width(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"extends: {ROOT}/presets/notebook_4.yaml\nmodel: {{dims: {{n_heads: 7}}}}")
    with pytest.raises(
        config.MistakesError, match=r"d_model \(256\) is not a multiple of n_heads \(7\)"
    ):
        config.load(path)


def test_s4_9_what_comes_out_are_logits() -> None:
    logits = demonstration()(SRC, TGT)
    assert "logits" in (inspect.getdoc(Transformer.forward) or "").splitlines()[0]
    torch.testing.assert_close(logits.softmax(-1).sum(-1), torch.ones(2, 8))
    assert not torch.allclose(logits.sum(-1), torch.ones(2, 8), atol=0.1)
    assert bool((logits < 0).any())
