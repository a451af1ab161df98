"""Several models that write one translation."""

from __future__ import annotations

import pytest
import torch

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding import translate
from ablate.decoding.beam import Beam
from ablate.decoding.greedy import Greedy
from ablate.model import Ensemble, Transformer
from ablate.parts.embedding import Vocabulary
from tests.decoding.test_contract import sources
from tests.tiny import scrambled, tiny

CPU = torch.device("cpu")


def _members() -> list[Transformer]:
    """Return two models of different width and depth."""
    wide = {"d_model": 24, "n_heads": 4, "max_len": 16}
    return [scrambled(tiny()), scrambled(tiny(dims=wide, n_layers=1))]


def test_the_mean_is_that_of_the_probabilities() -> None:
    """Written greedily by whole forward passes."""
    members, sentences = _members(), sources(6)
    best = translate(Ensemble(members), Greedy(max_extra=5), sentences, 500, CPU)
    for source, hypotheses in zip(sentences, best, strict=True):
        src, written, log_p = torch.tensor([source]), [BOS], 0.0
        limit = min(16, len(source) + 5)
        while written[-1] != EOS:
            with torch.no_grad():
                each = [m(src, torch.tensor([written]))[0, -1].softmax(-1) for m in members]
            p = torch.stack(each).mean(dim=0)
            p[[PAD, BOS]] = 0.0
            token = EOS if len(written) == limit else int(p.argmax())
            log_p += float(p[token].log())
            written.append(token)
        assert hypotheses[0].tokens == written[1:-1]
        assert hypotheses[0].log_p == pytest.approx(log_p, rel=1e-4)


def test_a_model_with_itself_is_the_model() -> None:
    member, search = _members()[0], Beam(size=3, n_best=3)
    alone = translate(member, search, sources(8), 100, CPU)
    twice = translate(Ensemble([member, member]), search, sources(8), 100, CPU)
    for a, b in zip(alone, twice, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], rel=1e-4)


def test_translating_leaves_the_mode_of_every_member() -> None:
    members = _members()
    members[1].train()
    members[1].decoder.eval()
    ensemble = Ensemble(members)
    before = [module.training for module in ensemble.modules()]
    assert {True, False} <= {*before}
    translate(ensemble, Greedy(), sources(1), 100, CPU)
    assert [module.training for module in ensemble.modules()] == before


def test_vocabularies_have_one_size() -> None:
    other = tiny(Vocabulary(n_src=9, n_tgt=9, is_joint=True))
    with pytest.raises(ValueError, match=r"have \[9, 50\] entries, not one size"):
        Ensemble([_members()[0], other])
