"""Learning unigram pieces: against plain enumeration, and on words one can foresee."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.data.unigram import (
    EM_STEPS,
    LONGEST_PIECE,
    SEEDS_PER_PIECE,
    SHARE_KEPT_PER_ROUND,
    _Lattice,
    train_unigram,
)

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


def plain(counts: dict[str, int], n_pieces: int) -> list[tuple[str, float]]:
    """Learn pieces by trying all segmentations, as the paper describes it, without lattices."""
    p = first_shares(counts, n_pieces)
    while True:
        for _ in range(EM_STEPS):
            expected = expected_counts(counts, p)
            kept = {x: max(n, 0.5) for x, n in expected.items() if len(x) == 1 or n >= 0.5}
            p = shares(kept)
        if len(p) <= n_pieces:
            break
        loss = {x: loss_without(x, p, expected[x]) for x in p}
        n_kept = max(n_pieces, int(SHARE_KEPT_PER_ROUND * len(p)))
        p = shares({x: kept[x] for x in sorted(p, key=lambda x: (-loss[x], x))[:n_kept]})
    ranked = sorted(p, key=lambda x: (-float(f"{math.log(p[x]):.6g}"), x))
    return [(x, round(math.log(p[x]), 6)) for x in ranked]


def shares(counts: dict[str, float]) -> dict[str, float]:
    return {x: n / sum(counts.values()) for x, n in counts.items()}


def first_shares(counts: dict[str, int], n_pieces: int) -> dict[str, float]:
    """Return the shares of all letters and of the substrings that cover most text."""
    frequency = Counter[str]()
    for word, n in counts.items():
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            frequency[word[start:end]] += n
    longer = [x for x in frequency if 1 < len(x) <= LONGEST_PIECE and frequency[x] > 1]
    longer.sort(key=lambda x: (-frequency[x] * len(x), x))
    letters = [x for x in frequency if len(x) == 1]
    pieces = sorted([*letters, *longer[: SEEDS_PER_PIECE * n_pieces]])
    return shares({x: frequency[x] for x in pieces})


def weight(way: list[str], p: dict[str, float]) -> float:
    return math.prod(p[x] for x in way)


def expected_counts(counts: dict[str, int], p: dict[str, float]) -> dict[str, float]:
    expected = dict.fromkeys(p, 0.0)
    for word, n in counts.items():
        every = ways(word, [*p])
        total = sum(weight(way, p) for way in every)
        for way in every:
            for x in way:
                expected[x] += n * weight(way, p) / total
    return expected


def loss_without(piece: str, p: dict[str, float], expected: float) -> float:
    """Return by how much the likelihood falls if a piece is put together from others."""
    if len(piece) == 1:
        return math.inf
    best = max(weight(way, p) for way in ways(piece, [*p]) if way != [piece])
    return float(f"{expected * (math.log(p[piece]) - math.log(best)):.6g}")


LETTERS = st.text(st.sampled_from("abc"), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(LETTERS, st.integers(1, 9), min_size=1, max_size=6), st.integers(3, 12))
def test_the_pieces_are_those_of_the_plain_algorithm(counts: dict[str, int], n: int) -> None:
    ours, expected = train_unigram(counts, n), plain(counts, n)
    assert [piece for piece, _ in ours] == [piece for piece, _ in expected]
    for (_, score), (_, other) in zip(ours, expected, strict=True):
        assert score == pytest.approx(other, abs=2e-6)
        assert score == round(score, 6)


@pytest.mark.parametrize("n", [8, 20])
def test_many_pieces_are_dropped_by_rounds_as_in_the_plain_algorithm(n: int) -> None:
    draw = random.Random(1)
    words = {"".join(draw.choices("abcd", k=draw.randint(3, 9))) for _ in range(30)}
    counts = {word: draw.randint(1, 20) for word in sorted(words)}
    ours, expected = train_unigram(counts, n), plain(counts, n)
    assert [piece for piece, _ in ours] == [piece for piece, _ in expected]


@pytest.mark.parametrize("n", [16, 17, 18])
def test_no_piece_is_longer_than_sixteen_characters(n: int) -> None:
    word = "abcdefghijklmnopqr"[:n]
    pieces = train_unigram({word: 100, word[::-1]: 1}, 200)
    assert max(len(piece) for piece, _ in pieces) == LONGEST_PIECE


def test_words_of_one_letter_are_their_own_pieces() -> None:
    assert train_unigram({"a": 3, "b": 1}, 5) == [("a", -0.287682), ("b", -1.386294)]
