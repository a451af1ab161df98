"""Beam search against the list of all translations, and each of its options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS
from ablate.decoding import Search, pad_sources, translate
from ablate.decoding.beam import Beam
from ablate.model import Transformer
from ablate.registry import RefusedError, build, choose, lookup
from tests.decoding.models import Markov, every_translation, small

CPU = torch.device("cpu")
SOURCES = [[4, EOS], [5, 3, EOS], [EOS], [3, 5, 5, EOS]]
MODELS = [Markov(seed=0), Markov(seed=1), Markov(seed=2, spread=3.0), small()]
IDS = ["markov", "markov-2", "markov-wide", "transformer"]


def beam(**options: Any) -> Beam:
    search = build(Search, choose(Search, "beam", **options))
    assert isinstance(search, Beam)
    return search


@pytest.mark.parametrize("model", MODELS, ids=IDS)
@pytest.mark.parametrize(
    "alpha", [0.6, *(pytest.param(a, marks=pytest.mark.full) for a in ("none", 1.0, 2.5))]
)
def test_a_beam_wide_enough_finds_the_best_of_all(model: Transformer, alpha: float | str) -> None:
    max_extra, n_best = 2, 5
    search = beam(size=250, length_penalty=alpha, n_best=n_best, max_extra=max_extra)
    for source, actual in zip(SOURCES, translate(model, search, SOURCES, 99, CPU), strict=True):
        power = 0.0 if isinstance(alpha, str) else alpha
        expected = every_translation(model, source, len(source) + max_extra, power)[:n_best]
        assert [h.tokens for h in actual] == [h.tokens for h in expected]
        assert [h.score for h in actual] == pytest.approx([h.score for h in expected], rel=1e-5)
        assert [h.log_p for h in actual] == pytest.approx([h.log_p for h in expected], rel=1e-5)


def _coverage(model: Transformer, source: list[int], tokens: list[int]) -> float:
    """Return the sum of ln min(1, attention) over the source, from one whole forward pass."""
    weights: list[Tensor] = []
    attention = model.decoder.blocks[model.decoder.order[-1]].cross_attention
    assert attention is not None
    handle = attention.dropout.register_forward_pre_hook(lambda _, args: weights.append(args[0]))
    with torch.no_grad():
        model(torch.tensor([source]), torch.tensor([[BOS, *tokens]]))
    handle.remove()
    attended = weights[-1][0].mean(dim=0).sum(dim=0)  # (S,)
    return float(attended.clamp(max=1).log().sum())


@pytest.mark.full
def test_a_wide_beam_finds_the_best_of_all_with_a_coverage_penalty() -> None:
    model, beta = small(), 0.8
    search = beam(size=250, coverage=beta, n_best=5, max_extra=2)
    orders = 0
    for source, hypotheses in zip(SOURCES, translate(model, search, SOURCES, 99, CPU), strict=True):
        every = every_translation(model, source, len(source) + 2, 0.6)
        scores = [h.score + beta * _coverage(model, source, h.tokens) for h in every]
        order = sorted(range(len(every)), key=lambda i: -scores[i])[:5]
        assert [h.tokens for h in hypotheses] == [every[i].tokens for i in order]
        assert [h.score for h in hypotheses] == pytest.approx([scores[i] for i in order], rel=1e-4)
        assert [h.log_p for h in hypotheses] == pytest.approx([every[i].log_p for i in order])
        orders += order != list(range(5))
    assert orders, "the penalty changes which translations are the best"


@pytest.mark.parametrize("sharing", ["none", "block"])
def test_a_coverage_penalty_is_that_of_the_whole_translation(sharing: str) -> None:
    """In batches of sources of several lengths, some of which are done before others.

    Attention is that of the last layer, also where its weights are those of an earlier one.
    Translations are so short that they leave a part of the source uncovered.
    """
    model, beta = small(n_layers=2, sharing=sharing), 0.5
    search = beam(size=3, coverage=beta, n_best=3, max_extra=0)
    least = 0.0
    plain = beam(size=3).penalty
    for source, hypotheses in zip(SOURCES, translate(model, search, SOURCES, 99, CPU), strict=True):
        for h in hypotheses:
            length = torch.tensor([len(h.tokens) + 1])
            coverage = _coverage(model, source, h.tokens)
            assert h.score == pytest.approx(
                h.log_p / float(plain(length)) + beta * coverage, rel=1e-4
            )
            least = min(least, coverage)
    assert least < -0.1
    assert not any(module._forward_pre_hooks for module in model.modules()), "none is left behind"


def _narrow(model: Markov, source: list[int], size: int, max_len: int) -> list[float]:
    """Return the scores of the plain algorithm, best first, with a length penalty of 0.6."""
    live, ended = [([BOS], 0.0)], list[float]()
    for length in range(1, max_len + 1):
        longer = [
            ([*tokens, token], log_p + float(more))
            for tokens, log_p in live
            for token, more in enumerate(model.table[source[0], tokens[-1]].log_softmax(-1))
            if token == EOS or (token > EOS and length < max_len)
        ]
        best = sorted(longer, key=lambda each: -each[1])[: size - len(ended)]
        live = [each for each in best if each[0][-1] != EOS]
        penalty = ((5 + length) / 6) ** 0.6
        ended += [log_p / penalty for tokens, log_p in best if tokens[-1] == EOS]
    return sorted(ended, reverse=True)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_narrow_beam_extends_the_likeliest_and_ended_ones_keep_their_place(size: int) -> None:
    model = Markov(seed=3)
    for n_best in (1, size):
        search = beam(size=size, n_best=n_best, max_extra=4)
        translations = translate(model, search, SOURCES, 99, CPU)
        for source, actual in zip(SOURCES, translations, strict=True):
            expected = _narrow(model, source, size, len(source) + 4)[:n_best]
            assert [h.score for h in actual] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_one_beam_is_greedy(model: Transformer) -> None:
    greedy = build(Search, choose(Search, "greedy", max_extra=9))
    ones = translate(model, beam(size=1, max_extra=9), SOURCES, 99, CPU)
    for one, other in zip(ones, translate(model, greedy, SOURCES, 99, CPU), strict=True):
        assert one[0].tokens == other[0].tokens
        assert one[0].log_p == pytest.approx(other[0].log_p, rel=1e-6)


@pytest.mark.parametrize("alpha", ["none", 0.6, 3.0])
@pytest.mark.parametrize(("size", "n_best"), [(2, 1), (4, 1), (4, 3), (4, 4)])
def test_stopping_early_loses_nothing(
    alpha: float | str, size: int, n_best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Markov(seed=5)
    sentences = [[i, *[4] * n, EOS] for i in (3, 4, 5) for n in range(5)]
    search = beam(size=size, length_penalty=alpha, n_best=n_best, max_extra=8)
    rows = _count_rows(model, monkeypatch)
    early = search.search(model, pad_sources(sentences))
    n_early = sum(rows)
    monkeypatch.setattr(Beam, "penalty", _hopeful(Beam.penalty))
    assert search.search(model, pad_sources(sentences)) == early
    if n_best == 1 and alpha != 3.0:
        assert n_early < sum(rows) - n_early


def test_a_sentence_is_done_when_live_beams_can_at_most_draw_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Markov()
    model.table.fill_(-torch.inf)
    model.table[..., [EOS, 4]] = 0.0  # both have the probability 1/2 at every step
    rows = _count_rows(model, monkeypatch)
    [[best]] = beam(size=2, length_penalty="none").search(model, pad_sources([[5, EOS]]))
    assert not best.tokens
    assert best.log_p == pytest.approx(-0.6931472)
    assert len(rows) == 1


def _count_rows(model: Markov, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the rows of every step of ``model``."""
    rows: list[int] = []
    plain = Markov.feed

    def feed(tokens: torch.Tensor, state: Any) -> torch.Tensor:
        rows.append(len(tokens))
        return plain(model, tokens, state)

    monkeypatch.setattr(model, "feed", feed)
    return rows


def _hopeful(penalty: Any) -> Any:
    """Let every limit, of which alone there are several, promise a perfect score."""

    def hopeful(self: Beam, length: torch.Tensor) -> torch.Tensor:
        if len(length) > 1:
            return torch.full_like(length, 1e30, dtype=torch.float32)
        return penalty(self, length)

    return hopeful


def test_fewer_translations_than_beams_are_all_there_is() -> None:
    actual = translate(Markov(), beam(size=9, n_best=9, max_extra=0), [[EOS], [4, EOS]], 99, CPU)
    assert [[h.tokens for h in sentence] for sentence in actual[:1]] == [[[]]]
    assert sorted(h.tokens for h in actual[1]) == [[], [3], [4], [5]]


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("form", ["gnmt", "power"])
def test_the_score_is_log_p_over_the_penalty(form: str, alpha: float) -> None:
    """Of Wu et al., or as ``eos_scores /= (step + 1) ** len_penalty`` in fairseq."""
    search = beam(length_penalty=alpha, penalty_form=form, max_extra=4)
    for actual in translate(small(), search, SOURCES, 99, CPU):
        length = len(actual[0].tokens) + 1  # EOS
        base = (5 + length) / (5 + 1) if form == "gnmt" else length
        assert actual[0].score == pytest.approx(actual[0].log_p / base**alpha, rel=1e-6)


def test_without_a_penalty_the_score_is_log_p() -> None:
    for actual in translate(small(), beam(length_penalty="none"), SOURCES, 99, CPU):
        assert actual[0].score == actual[0].log_p


def test_a_form_without_a_penalty_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"its form \(power\) makes no difference"):
        beam(length_penalty="none", penalty_form="power")


def test_no_penalty_has_one_spelling() -> None:
    entry = lookup("decoding", "beam")
    assert entry.choose({"length_penalty": 0.0}) == entry.choose({"length_penalty": "none"})


def test_more_hypotheses_than_beams_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"n_best \(3\) is more than the beam's size \(2\)"):
        beam(size=2, n_best=3)
