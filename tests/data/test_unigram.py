"""Learning unigram pieces: against plain enumeration, and on words one can foresee."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from ablate.data.unigram import _Lattice, train_unigram

WORDS = ["abcab", "bca", "aaa"]
PIECES = ["a", "aa", "ab", "abc", "b", "bc", "bca", "c", "ca"]
COUNTS = np.array([3.0, 2.0, 5.0])


def ways(word: str, pieces: list[str]) -> list[list[str]]:
    """Return every way to put ``word`` together, by trying all."""
    if not word:
        return [[]]
    starts = [piece for piece in pieces if word.startswith(piece)]
    return [[piece, *rest] for piece in starts for rest in ways(word[len(piece) :], pieces)]


@pytest.fixture
def scores() -> np.ndarray:
    weights = np.random.default_rng(1).random(len(PIECES))
    return np.log(weights / weights.sum())


def test_expected_counts_equal_those_over_all_ways(scores: np.ndarray) -> None:
    log_p = dict(zip(PIECES, scores, strict=True))
    expected = dict.fromkeys(PIECES, 0.0)
    for word, count in zip(WORDS, COUNTS, strict=True):
        weighed = [(way, math.exp(sum(log_p[x] for x in way))) for way in ways(word, PIECES)]
        total = sum(weight for _, weight in weighed)
        for way, weight in weighed:
            for piece in way:
                expected[piece] += count * weight / total
    actual = _Lattice(WORDS, PIECES).expected_counts(scores, COUNTS)
    np.testing.assert_allclose(actual, [expected[piece] for piece in PIECES], rtol=1e-12)


def test_best_equals_the_best_of_all_ways(scores: np.ndarray) -> None:
    log_p = dict(zip(PIECES, scores, strict=True))
    expected = [max(sum(log_p[x] for x in way) for way in ways(word, PIECES)) for word in WORDS]
    np.testing.assert_allclose(_Lattice(WORDS, PIECES).best(scores), expected, rtol=1e-12)


def test_a_proper_lattice_uses_no_word_for_itself(scores: np.ndarray) -> None:
    best = _Lattice(PIECES, PIECES, proper=True).best(scores)
    for piece, actual in zip(PIECES, best, strict=True):
        others = [way for way in ways(piece, PIECES) if way != [piece]]
        log_p = dict(zip(PIECES, scores, strict=True))
        expected = max((sum(log_p[x] for x in way) for way in others), default=-math.inf)
        assert actual == pytest.approx(expected)


def test_dropped_pieces_are_used_no_more(scores: np.ndarray) -> None:
    lattice = _Lattice(WORDS, PIECES)
    alive = np.array([len(piece) == 1 for piece in PIECES])
    lattice.drop(alive)
    counts = lattice.expected_counts(np.where(alive, scores, -np.inf), COUNTS)
    letters = {"a": 2 * 3 + 1 * 2 + 3 * 5, "b": 2 * 3 + 2, "c": 3 + 2}
    assert dict(zip(PIECES, counts, strict=True)) == pytest.approx(
        {piece: letters.get(piece, 0.0) for piece in PIECES}
    )


def test_stems_and_endings_become_pieces_and_every_character_stays() -> None:
    draw = random.Random(0)
    stems = [
        "".join(map(draw.choice, ("bdfhjklmprtvw", "aou", "bdfkmpt", "bdfkmpt"))) for _ in range(40)
    ]
    endings = ["ing", "ed", "er", ""]
    counts = {f"▁{a}{b}": draw.randint(5, 50) for a, b in itertools.product(stems, endings)}
    characters = {x for word in counts for x in word}
    pieces = dict(train_unigram(counts, len(characters) + 45))
    assert characters <= set(pieces)
    assert len(pieces) == len(characters) + 45
    assert {"ing", "ed", "er"} <= set(pieces)
    assert sum(f"▁{stem}" in pieces for stem in stems) > 35
    assert all(score < 0 for score in pieces.values())
    assert sum(math.exp(score) for score in pieces.values()) == pytest.approx(1.0, abs=1e-4)


def test_the_order_of_the_words_does_not_matter() -> None:
    counts = {"▁abab": 7, "▁abc": 7, "▁bcab": 7, "▁ca": 3}
    backwards = dict(reversed(counts.items()))
    assert train_unigram(counts, 9) == train_unigram(backwards, 9)
