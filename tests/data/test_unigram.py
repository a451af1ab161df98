"""Learning unigram pieces: against plain enumeration, and on words one can foresee."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.data.unigram import (
    EM_STEPS,
    LONGEST_PIECE,
    SEEDS_PER_PIECE,
    SHARE_KEPT_PER_ROUND,
    train_unigram,
)


def ways(word: str, pieces: list[str]) -> list[list[str]]:
    """Return every way to put ``word`` together, by trying all."""
    if not word:
        return [[]]
    starts = [piece for piece in pieces if word.startswith(piece)]
    return [[piece, *rest] for piece in starts for rest in ways(word[len(piece) :], pieces)]


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
