"""Learn the pieces of a unigram language model: Kudo 2018, arXiv:1804.10959, section 3.2.

The trainer of the `tokenizers` library breaks ties by the order of a hash table that differs from
one process to the next, so two trainings on one text disagree. This one does not: what it compares
is rounded first, and equals go by alphabet.

A lattice holds, for every word, each way to put it together from pieces; nodes are the places
between characters, edges are pieces. All words are walked through at once, character by character.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE = 16
SEEDS_PER_PIECE = 10
KEPT_PER_ROUND = 0.75
EM_STEPS = 2

Floats = NDArray[np.float64]


def train_unigram(counts: Mapping[str, int], n_micro_batches: int) -> list[tuple[str, float]]:
    """Return at most ``n_micro_batches`` pieces with their log-probabilities, likeliest first.

    Every character that occurs is among them, so ``n_micro_batches`` must be no less.

    Args:
        counts: how often each word occurs.
        n_micro_batches: how many are wanted.
    """
    words = sorted(counts)
    pieces, weights = _seeds(words, counts, SEEDS_PER_PIECE * n_micro_batches)
    text = _Lattice(words, pieces)
    parts = _Lattice(pieces, pieces, proper=True)
    n_words = np.array([counts[word] for word in words], dtype=np.float64)
    is_character = np.array([len(piece) == 1 for piece in pieces])
    alive = np.ones(len(pieces), dtype=bool)
    scores = _log_share(weights, alive)
    while True:
        for _ in range(EM_STEPS):
            expected = text.expected_counts(scores, n_words)
            alive &= is_character | (expected >= 0.5)
            scores = _log_share(np.maximum(expected, 0.5), alive)
            text.drop(alive)
            parts.drop(alive)
        n_alive = int(alive.sum())
        if n_alive <= n_micro_batches:
            break
        loss = np.full(len(pieces), np.inf)
        longer = alive & ~is_character
        loss[longer] = expected[longer] * (scores[longer] - parts.best(scores)[longer])
        n_kept = max(n_micro_batches, int(KEPT_PER_ROUND * n_alive))
        order = _ranked(loss, alive)
        alive[order[n_kept:]] = False
        scores = _log_share(np.maximum(expected, 0.5), alive)
        text.drop(alive)
        parts.drop(alive)
    order = _ranked(scores, alive)
    return [(pieces[i], round(float(scores[i]), 6)) for i in order]


def _seeds(
    words: Sequence[str], counts: Mapping[str, int], n_seeds: int
) -> tuple[list[str], Floats]:
    """Return all characters and the substrings that cover most text, in alphabetical order."""
    found: Counter[str] = Counter()
    for word in words:
        count = counts[word]
        for start in range(len(word)):
            for end in range(start + 1, min(start + LONGEST_PIECE, len(word)) + 1):
                found[word[start:end]] += count
    characters = [piece for piece in found if len(piece) == 1]
    longer = [piece for piece, count in found.items() if len(piece) > 1 and count > 1]
    longer.sort(key=lambda piece: (-found[piece] * len(piece), piece))
    pieces = sorted([*characters, *longer[:n_seeds]])
    return pieces, np.array([found[piece] for piece in pieces], dtype=np.float64)


def _log_share(weights: Floats, alive: NDArray[np.bool_]) -> Floats:
    """Return log(weight / sum of the living), and -inf for the dead."""
    scores = np.full(len(weights), -np.inf)
    scores[alive] = np.log(weights[alive]) - np.log(weights[alive].sum())
    return scores


def _ranked(values: Floats, alive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the living from the greatest value down; equals in alphabetical order.

    Values are compared by six digits: what lies behind them depends on the processor.
    """
    living = np.flatnonzero(alive)
    rounded = np.array([float(f"{value:.6g}") for value in values[living]])
    return living[np.argsort(-rounded, kind="stable")]


class _Lattice:
    """Every way to put words together from pieces.

    Args:
        words: what to put together.
        pieces: the candidates; their places in this list are the ids.
        proper: a word that is a piece may not be used for itself.
    """

    def __init__(self, words: Sequence[str], pieces: Sequence[str], proper: bool = False) -> None:
        index = {piece: i for i, piece in enumerate(pieces)}
        edges: list[tuple[int, int, int, int]] = []  # place in its word, from, to, piece
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
        self._place, self._from, self._to, self._piece = table[
            np.lexsort((table[:, 1], table[:, 2], table[:, 0]))
        ].T

    def drop(self, alive: NDArray[np.bool_]) -> None:
        """Forget the edges of pieces that are not alive."""
        kept = alive[self._piece]
        self._place, self._from = self._place[kept], self._from[kept]
        self._to, self._piece = self._to[kept], self._piece[kept]

    def expected_counts(self, scores: Floats, n_words: Floats) -> Floats:
        """Return how often each piece is used, over all ways, each by its probability."""
        log_p = scores[self._piece]
        before = self._walk(log_p, np.logaddexp)
        n_nodes = self._weigh_backwards(log_p, before, n_words)
        used = np.exp(before[self._from] + log_p - before[self._to]) * n_nodes[self._to]
        return np.bincount(self._piece, used, minlength=len(scores)).astype(np.float64)

    def best(self, scores: Floats) -> Floats:
        """Return the log-probability of the likeliest way for every word; -inf if there is none."""
        return self._walk(scores[self._piece], np.maximum)[self._last]

    def _walk(self, log_p: Floats, join: np.ufunc) -> Floats:
        """Return for every node the log-probabilities of all ways to it, joined by ``join``."""
        reached = np.full(self._n_nodes, -np.inf)
        reached[self._first] = 0.0
        for here in self._steps():
            to = self._to[here]
            starts = np.flatnonzero(np.diff(to, prepend=-1))
            value = reached[self._from[here]] + log_p[here]
            reached[to[starts]] = join.reduceat(value, starts)
        return reached

    def _weigh_backwards(self, log_p: Floats, before: Floats, n_words: Floats) -> Floats:
        """Return how often each node is passed, in expectation."""
        passed = np.zeros(self._n_nodes)
        passed[self._last] = n_words
        for here in reversed(self._steps()):
            from_, to = self._from[here], self._to[here]
            share = np.exp(before[from_] + log_p[here] - before[to])
            np.add.at(passed, from_, share * passed[to])
        return passed

    def _steps(self) -> list[slice]:
        """Return the edges that end at the first place of their word, at the second, ..."""
        bounds = np.flatnonzero(np.diff(self._place, prepend=-1, append=-1))
        return [slice(a, b) for a, b in itertools.pairwise(bounds)]
