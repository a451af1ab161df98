"""Searches against enumeration, against each other, and against the full forward pass."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding import Hypothesis, Search
from ablate.decoding.candidates import blockwise_topk
from ablate.decoding.translate import _max_batch_rows
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from ablate.registry import RefusedError, build, choose, slots
from tests.tiny import alternatives, spec

V = 7
MAX_LEN = 5
CPU = torch.device("cpu")
SEARCHES = sorted(slots()["decoding"])


def model(max_len: int = MAX_LEN, *, ends: bool = True) -> Transformer:
    """Return a random model with a mind of its own, the same at every call."""
    torch.manual_seed(0)
    model_spec = spec(
        dims={"d_model": 32, "n_heads": 4, "max_len": max_len},
        n_layers=2,
        embedding={"name": "separate", "output_bias": True},
        position={"name": "learned", "init_std": 1.5},
    )
    transformer = assemble(model_spec, Vocabulary(V, V, is_joint=True), PAD).eval()
    assert transformer.embedding.output is not None
    with torch.no_grad():
        transformer.embedding.output.weight.normal_(std=2 * 32**-0.5)
        transformer.embedding.output.bias[EOS] = -1.0 if ends else -10.0
    return transformer


def search(name: str, **options: Any) -> Search:
    return build(Search, choose(Search, name, **options))


def sources(n: int = 6, longest: int = 4, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [[*random.integers(3, V, random.integers(0, longest)).tolist(), EOS] for _ in range(n)]


def padded(sentences: list[list[int]]) -> Tensor:
    rows = [torch.tensor(sentence) for sentence in sentences]
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def score(value: float, length: int, alpha: float | str) -> float:
    """Return eq. 14 of Wu et al. 2016, the length with EOS."""
    return value if alpha == "none" else value / ((5 + length) / 6) ** float(alpha)


@functools.cache
def every_translation() -> list[tuple[list[int], list[tuple[list[int], float]]]]:
    """Return three sources, and all possible translations of each with their log-probability."""
    transformer = model()
    words = [i for i in range(V) if i not in (PAD, BOS, EOS)]
    listed = [list(each) for n in range(MAX_LEN) for each in itertools.product(words, repeat=n)]
    tgt_out = padded([[*tokens, EOS] for tokens in listed])
    tgt_in = padded([[BOS, *tokens] for tokens in listed])
    result = []
    for src in sources(3):
        with torch.inference_mode():
            table = transformer(padded([src]).expand(len(listed), -1), tgt_in).log_softmax(-1)
        each = table.gather(-1, tgt_out[..., None])[..., 0].masked_fill(tgt_out == PAD, 0.0)
        result.append((src, list(zip(listed, each.sum(-1).tolist(), strict=True))))
    return result


@pytest.mark.parametrize("alpha", ["none", 0.0, 0.6, 2.0])
def test_a_beam_wide_enough_finds_what_enumeration_finds(alpha: float | str) -> None:
    transformer, n_best = model(), 7
    n_all = len(every_translation()[0][1])
    beam = search("beam", size=n_all, n_best=n_best, length_penalty=alpha)
    for src, every in every_translation():
        ranked = sorted(every, key=lambda e: -score(e[1], len(e[0]) + 1, alpha))[:n_best]
        actual = beam.search(transformer, padded([src]))[0]
        assert [h.tokens for h in actual] == [tokens for tokens, _ in ranked]
        for hypothesis, (tokens, value) in zip(actual, ranked, strict=True):
            assert hypothesis.log_p == pytest.approx(value, abs=1e-4)
            assert hypothesis.score == pytest.approx(score(value, len(tokens) + 1, alpha), abs=1e-4)


def test_a_beam_of_one_is_greedy() -> None:
    transformer = model(max_len=12)
    src = padded(sources(40, longest=10))
    narrow = search("beam", size=1).search(transformer, src)
    greedy = search("greedy").search(transformer, src)
    assert [h[0].tokens for h in narrow] == [h[0].tokens for h in greedy]
    assert len({len(h[0].tokens) for h in greedy}) > 3


def test_the_best_come_first_and_none_twice() -> None:
    transformer, src = model(max_len=12), padded(sources(20, longest=10))
    for hypotheses in search("beam", size=6, n_best=6).search(transformer, src):
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses) == 6


def test_a_wider_beam_is_likelier_on_the_whole() -> None:
    transformer, src = model(max_len=12), padded(sources(40, longest=10))

    def mean(size: int) -> float:
        actual = search("beam", size=size, length_penalty="none").search(transformer, src)
        return math.fsum(h[0].log_p for h in actual)

    assert mean(8) > mean(2) > mean(1)


@pytest.mark.parametrize(
    ("name", "option"),
    [(n, o) for n in SEARCHES for o in slots()["decoding"][n].options.model_fields],
)
def test_every_option_changes_what_is_found(name: str, option: str) -> None:
    transformer = model(max_len=12, ends=option != "max_extra")
    src = padded(sources(16, longest=8))

    def actual(**options: Any) -> list[list[Hypothesis]]:
        return search(name, **options).search(transformer, src)

    usual = actual()
    values = [0] if option == "max_extra" else list(alternatives(slots()["decoding"][name], option))
    assert values
    for value in values:
        if (option == "n_best" and value > 5) or (option == "top_k" and value >= V):
            continue  # more than there are
        assert actual(**{option: value}) != usual, value


def test_more_hypotheses_than_beams_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"n_best \(3\) is more than the beam's size \(2\)"):
        search("beam", size=2, n_best=3)


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
    expected = x.topk(k)
    assert torch.equal(actual, expected.values)
    assert torch.equal(x.gather(-1, places), actual)
    assert all(len(set(row)) == k for row in places.flatten(0, 1).tolist())


def test_the_caches_of_a_batch_fill_a_sixteenth_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of two layers in float32, twice to be reordered, for each of five beams."""
    n_bytes = 4 * 2 * 2 * (2 * 32) * MAX_LEN * 5  # of a sentence
    arguments = model(), build(Search, choose(Search, "beam", size=5)), torch.device("cuda")
    for n_total, n_rows in ((16 * 7 * n_bytes, 7), (16 * 7 * n_bytes - 16, 6), (n_bytes, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, total=n_total: (0, total))
        assert _max_batch_rows(*arguments) == n_rows
    assert _max_batch_rows(*arguments[:2], CPU) == sys.maxsize
