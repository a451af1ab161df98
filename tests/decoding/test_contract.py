"""What holds for every registered search."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
import torch

from ablate.data.sentences import Ragged
from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding import Hypothesis, Search, batches_by_length, pad_sources, translate
from ablate.decoding.candidates import blockwise_topk
from ablate.decoding.translate import _max_batch_rows
from ablate.model import Transformer
from ablate.registry import build, choose, slots
from tests.decoding.models import Markov, log_likelihood, small
from tests.tiny import VOCABULARY, alternatives, scrambled, tiny

CPU = torch.device("cpu")


@pytest.fixture(params=sorted(slots()["decoding"]))
def search(request: pytest.FixtureRequest) -> Search:
    """Each registered search in turn."""
    return build(Search, choose(Search, request.param, max_extra=4))


def sources(n: int = 40, n_ids: int = 50, longest: int = 10, seed: int = 0) -> list[list[int]]:
    """Return random sentences, some with nothing but EOS."""
    drawn = random.Random(seed)
    sentences = [
        [drawn.randrange(4, n_ids) for _ in range(drawn.randrange(longest))] for _ in range(n)
    ]
    sentences[0] = []
    return [[*sentence, EOS] for sentence in sentences]


def tokens_of(actual: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in sentence] for sentence in actual]


@pytest.mark.parametrize("scrambles", [True, False], ids=["scrambled", "fresh"])
def test_a_translation_does_not_depend_on_its_batch(search: Search, scrambles: bool) -> None:
    model = small(vocabulary=VOCABULARY) if scrambles else tiny(n_layers=2)
    sentences = sources(20)
    together = translate(model, search, sentences, 10_000, CPU)
    in_batches = translate(model, search, sentences, 30, CPU)
    alone = [translate(model, search, [source], 1, CPU)[0] for source in sentences]
    assert tokens_of(together) == tokens_of(in_batches) == tokens_of(alone)
    assert len({len(hypotheses[0].tokens) for hypotheses in together}) > 3
    for a, b in zip(together, alone, strict=True):
        assert [h.log_p for h in a] == pytest.approx([h.log_p for h in b], abs=1e-4)


@pytest.mark.parametrize("model", [Markov(), small()], ids=["markov", "transformer"])
def test_log_p_is_that_of_the_whole_sentence_at_once(search: Search, model: Transformer) -> None:
    sentences, n_tokens = sources(12, n_ids=6, longest=8), torch.arange(1, 13)
    with torch.inference_mode():
        forced = search.search(model, pad_sources(sentences), n_tokens)
    free = translate(model, search, sentences, 60, CPU)
    for source, actual in zip(sentences * 2, free + forced, strict=True):
        for hypothesis in actual:
            expected = log_likelihood(model, source, hypothesis.tokens)
            assert hypothesis.log_p == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_no_padding_and_no_beginning_is_ever_written(search: Search) -> None:
    model = Markov()
    model.table[..., [PAD, BOS]] = 9.0  # what it wants most
    for actual in translate(model, search, sources(n_ids=6), 60, CPU):
        assert actual
        assert not {PAD, BOS, EOS} & {i for hypothesis in actual for i in hypothesis.tokens}


@pytest.mark.parametrize("max_len", [4, 16])
@pytest.mark.parametrize("max_extra", [0, 4])
def test_a_translation_ends_at_the_limit_at_its_own_price(
    search: Search, max_extra: int, max_len: int
) -> None:
    model, sentences = Markov(n_ids=30), sources(n_ids=30, longest=max_len)
    model.max_len = max_len
    model.table[..., EOS] = -20.0  # never wants to end
    search.max_extra = max_extra
    for source, actual in zip(sentences, translate(model, search, sentences, 60, CPU), strict=True):
        for hypothesis in actual:
            assert len(hypothesis.tokens) + 1 == min(len(source) + max_extra, max_len)
            expected = log_likelihood(model, source, hypothesis.tokens)
            assert hypothesis.log_p == pytest.approx(expected, rel=1e-5)
            assert hypothesis.log_p < -15.0


def test_the_order_of_the_input_is_kept(search: Search) -> None:
    model, sentences = Markov(), [[4, EOS], [5, 4, 4, EOS], [3, 4, EOS], [EOS], [4, 4, 4, 4, EOS]]
    model.table[:] = -9.0
    for first in (EOS, 3, 4, 5):
        model.table[first, :, EOS] = 0.0
        model.table[first, BOS, EOS], model.table[first, BOS, first] = -9.0, 9.0
    best = [actual[0].tokens for actual in translate(model, search, sentences, 6, CPU)]
    assert [tokens[:1] for tokens in best] == [[4], [5], [3], [], [4]]


@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_is_evaluated_and_its_mode_kept(search: Search, is_training: bool) -> None:
    model = tiny(n_layers=1, dropout={"embedding": 0.5, "residual": 0.5}).train(is_training)
    first, second = (translate(model, search, sources(5), 60, CPU) for _ in range(2))
    assert first == second
    assert model.training is is_training
    with pytest.raises(ValueError, match="longer than"):
        translate(model, search, [[4] * 20], 60, CPU)
    assert model.training is is_training


def test_ragged_ids_and_lists_are_the_same(search: Search) -> None:
    model, sentences = scrambled(tiny(n_layers=1)), sources(8)
    assert translate(model, search, Ragged.of(sentences), 60, CPU) == translate(
        model, search, sentences, 60, CPU
    )


def test_nothing_is_translated_to_nothing(search: Search) -> None:
    assert translate(tiny(), search, [], 60, CPU) == []


def test_a_source_without_even_its_end_is_refused(search: Search) -> None:
    with pytest.raises(ValueError, match="source 1 has no ids"):
        translate(tiny(), search, [[4, EOS], []], 60, CPU)


def test_batches_are_full_sorted_and_complete() -> None:
    sentences = sources(100, seed=3)
    batches = list(batches_by_length(sentences, 40))
    assert sorted(row for rows in batches for row in rows) == list(range(100))
    sizes = [len(sentences[row]) for rows in batches for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert all(len(rows) * len(sentences[rows[0]]) <= 40 for rows in batches)
    assert all((len(rows) + 1) * len(sentences[rows[0]]) > 40 for rows in batches[:-1])


def test_a_sentence_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    assert list(batches_by_length([[4] * 9, [4] * 9, [4]], 5)) == [[0], [1], [2]]


def test_a_batch_has_no_more_rows_than_are_allowed() -> None:
    batches = list(batches_by_length(sources(50, seed=3), 10_000, 7))
    assert [len(rows) for rows in batches] == [7] * 7 + [1]


def test_logits_of_a_few_sentences_at_a_time_are_those_of_all(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sentences = scrambled(tiny(n_layers=1)), sources(20)
    expected = [h[0].tokens for h in translate(model, search, sentences, 10_000, CPU)]
    monkeypatch.setattr("ablate.parts.embedding._LOGITS_BYTES", {"cpu": 0})
    monkeypatch.setattr("ablate.parts.embedding._MIN_ROWS", 3 * search.n_beams)
    assert [h[0].tokens for h in translate(model, search, sentences, 10_000, CPU)] == expected


def test_padding_fills_up_at_the_end() -> None:
    ids = pad_sources([np.array([4, EOS], dtype=np.int32), [EOS]])
    assert ids.tolist() == [[4, EOS], [EOS, PAD]]
    assert ids.dtype == torch.long


@pytest.mark.parametrize(
    ("name", "option"),
    [(n, o) for n, entry in slots()["decoding"].items() for o in entry.options.model_fields],
)
def test_every_option_changes_what_is_found(name: str, option: str) -> None:
    model, src = small(vocabulary=VOCABULARY), pad_sources(sources(16, longest=8))
    if option == "max_extra":  # translations must reach their limits
        assert model.embedding.bias is not None
        torch.nn.init.constant_(model.embedding.bias[EOS], -10.0)
    with torch.no_grad():

        def actual(**options: Any) -> list[list[Hypothesis]]:
            return build(Search, choose(Search, name, **options)).search(model, src)

        usual = actual()
        entry = slots()["decoding"][name]
        values = [0] if option == "max_extra" else list(alternatives(entry, option))
        assert values
        for value in values:
            if option == "n_best" and value > 5:
                continue  # more than there are beams
            assert actual(**{option: value}) != usual, value


@pytest.mark.parametrize("n_ids", [7, 300, 511, 2560, 5000])
@pytest.mark.parametrize("k", [1, 5])
def test_the_largest_numbers_are_those_of_topk(n_ids: int, k: int) -> None:
    """Wherever they stand: in one block, in many, or in what no block holds.

    There are so many rows that their number is not mistaken for that of the ids.
    """
    generator = torch.Generator().manual_seed(n_ids)
    x = torch.randn(2, 576, n_ids, generator=generator)
    x[0, 0, -k:] += 10
    x[0, 1, :k] += 10
    x[1, 0, 1:] = -torch.inf
    actual, places = blockwise_topk(x, k)
    assert torch.equal(actual, x.topk(k).values)
    assert torch.equal(x.gather(-1, places), actual)
    assert all(len(set(row)) == k for row in places.flatten(0, 1).tolist())


def test_the_caches_of_a_batch_fill_a_sixteenth_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of two layers in float32, twice to be reordered, for each of five beams."""
    model, beam = tiny(n_layers=2), build(Search, choose(Search, "beam", size=5))
    n_bytes = 4 * 2 * 2 * (2 * 32) * model.max_len * 5  # of a sentence
    for n_total, n_rows in ((16 * 7 * n_bytes, 7), (16 * 7 * n_bytes - 16, 6), (n_bytes, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, total=n_total: (0, total))
        assert _max_batch_rows(model, beam, torch.device("cuda")) == n_rows
    assert _max_batch_rows(model, beam, CPU) == sys.maxsize
