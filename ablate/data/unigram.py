"""Learn the pieces of a unigram language model: Kudo 2018, arXiv:1804.10959, section 3.2.

The trainer of the `tokenizers` library breaks ties by the order of a hash table, which differs
between processes, so two trainings on one text disagree. This one is deterministic: values are
rounded before they are compared, and ties are broken alphabetically.

A lattice holds, for every word, each of its segmentations into pieces; nodes are the boundaries
between characters, edges are pieces. All words are processed together, character by character.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE = 16
SEEDS_PER_PIECE = 10
SHARE_KEPT_PER_ROUND = 0.75
EM_STEPS = 2

Floats = NDArray[np.float64]


def train_unigram(counts: Mapping[str, int], n_pieces: int) -> list[tuple[str, float]]:
    """Return at most ``n_pieces`` pieces with their log-probabilities, likeliest first.

    Every character that occurs is among them, so ``n_pieces`` must be at least their number.
    ``counts`` has how often each word occurs.
    """
    words = sorted(counts)
    pieces, weights = _seeds(words, counts, SEEDS_PER_PIECE * n_pieces)
    text = _Lattice(words, pieces)
    parts = _Lattice(pieces, pieces, proper=True)
    n_words = np.array([counts[word] for word in words], dtype=np.float64)
    is_character = np.array([len(piece) == 1 for piece in pieces])
    used = np.ones(len(pieces), dtype=bool)
    scores = _log_share(weights, used)
    while True:
        for _ in range(EM_STEPS):
            expected = text.expected_counts(scores, n_words)
            used &= is_character | (expected >= 0.5)
            scores = _log_share(np.maximum(expected, 0.5), used)
            text.drop(used)
            parts.drop(used)
        n_used = int(used.sum())
        if n_used <= n_pieces:
            break
        loss = np.full(len(pieces), np.inf)
        longer = used & ~is_character
        loss[longer] = expected[longer] * (scores[longer] - parts.best(scores)[longer])
        n_kept = max(n_pieces, int(SHARE_KEPT_PER_ROUND * n_used))
        order = _ranked(loss, used)
        used[order[n_kept:]] = False
        scores = _log_share(np.maximum(expected, 0.5), used)
        text.drop(used)
        parts.drop(used)
    order = _ranked(scores, used)
    return [(pieces[i], round(float(scores[i]), 6)) for i in order]


def _seeds(
    words: Sequence[str], counts: Mapping[str, int], n_seeds: int
) -> tuple[list[str], Floats]:
    """Return all characters and the substrings that cover most text, in alphabetical order."""
    frequency: Counter[str] = Counter()
    for word in words:
        count = counts[word]
        for start in range(len(word)):
            for end in range(start + 1, min(start + LONGEST_PIECE, len(word)) + 1):
                frequency[word[start:end]] += count
    characters = [piece for piece in frequency if len(piece) == 1]
    longer = [piece for piece, count in frequency.items() if len(piece) > 1 and count > 1]
    longer.sort(key=lambda piece: (-frequency[piece] * len(piece), piece))
    pieces = sorted([*characters, *longer[:n_seeds]])
    return pieces, np.array([frequency[piece] for piece in pieces], dtype=np.float64)


def _log_share(weights: Floats, used: NDArray[np.bool_]) -> Floats:
    """Return log(weight / sum over the pieces in use), and -inf for the others."""
    scores = np.full(len(weights), -np.inf)
    scores[used] = np.log(weights[used]) - np.log(weights[used].sum())
    return scores


def _ranked(values: Floats, used: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the pieces in use by falling value; ties in alphabetical order.

    Values are compared by six digits: further ones depend on the processor.
    """
    in_use = np.flatnonzero(used)
    rounded = np.array([float(f"{value:.6g}") for value in values[in_use]])
    return in_use[np.argsort(-rounded, kind="stable")]


class _Lattice:
    """All segmentations of words into pieces, whose indices are their ids.

    In a proper one a word that is a piece is not a segmentation of itself.
    """

    def __init__(self, words: Sequence[str], pieces: Sequence[str], proper: bool = False) -> None:
        index = {piece: i for i, piece in enumerate(pieces)}
        edges: list[tuple[int, int, int, int]] = []  # end in its word, from, to, piece
        self._first = np.zeros(len(words), dtype=np.int64)
        self._last = np.zeros(len(words), dtype=np.int64)
        node = 0
        for w, word in enumerate(words):
            length = len(word)
            for start in range(length):
                for end in range(start + 1, min(start + LONGEST_PIECE, length) + 1):
                    piece = index.get(word[start:end])
                    if piece is not None and not (proper and end - start == length):
                        edges.append((end, node + start, node + end, piece))
            self._first[w], self._last[w] = node, node + length
            node += length + 1
        self._n_nodes = node
        table = np.array(edges, dtype=np.int64).reshape(-1, 4)
        self._end, self._from, self._to, self._piece = table[
            np.lexsort((table[:, 1], table[:, 2], table[:, 0]))
        ].T

    def drop(self, used: NDArray[np.bool_]) -> None:
        is_used = used[self._piece]
        self._end, self._from = self._end[is_used], self._from[is_used]
        self._to, self._piece = self._to[is_used], self._piece[is_used]

    def expected_counts(self, scores: Floats, n_words: Floats) -> Floats:
        """Return how often each piece occurs, in expectation over all segmentations."""
        log_p = scores[self._piece]
        before = self._forward(log_p, np.logaddexp)
        n_nodes = self._backward(log_p, before, n_words)
        used = np.exp(before[self._from] + log_p - before[self._to]) * n_nodes[self._to]
        return np.bincount(self._piece, used, minlength=len(scores)).astype(np.float64)

    def best(self, scores: Floats) -> Floats:
        """Return the log-probability of the best segmentation of each word; -inf for none."""
        return self._forward(scores[self._piece], np.maximum)[self._last]

    def _forward(self, log_p: Floats, join: np.ufunc) -> Floats:
        """Return for every node the log-probabilities of all paths to it, joined by ``join``."""
        reached = np.full(self._n_nodes, -np.inf)
        reached[self._first] = 0.0
        for edges in self._steps():
            to = self._to[edges]
            starts = np.flatnonzero(np.diff(to, prepend=-1))
            value = reached[self._from[edges]] + log_p[edges]
            reached[to[starts]] = join.reduceat(value, starts)
        return reached

    def _backward(self, log_p: Floats, before: Floats, n_words: Floats) -> Floats:
        """Return how often each node is visited, in expectation."""
        visits = np.zeros(self._n_nodes)
        visits[self._last] = n_words
        for edges in reversed(self._steps()):
            from_, to = self._from[edges], self._to[edges]
            share = np.exp(before[from_] + log_p[edges] - before[to])
            np.add.at(visits, from_, share * visits[to])
        return visits

    def _steps(self) -> list[slice]:
        """Return the edges that end after the first character of their word, the second, ..."""
        bounds = np.flatnonzero(np.diff(self._end, prepend=-1, append=-1))
        return [slice(a, b) for a, b in itertools.pairwise(bounds)]
