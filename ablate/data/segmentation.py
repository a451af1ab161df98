"""Segmentations of words that are drawn at random, from what a tokenizer has learned.

A word is what a tokenizer splits text into before its model is applied, so that no token reaches
beyond it. Random numbers come from NumPy: the dropout of the `tokenizers` library cannot be seeded.

W distinct words, N words of a text, M merges. Boundaries are those between characters.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from tokenizers import Tokenizer as HFTokenizer

from ablate.data.sentences import Ragged, Rows

_NO_MERGE = np.iinfo(np.int64).max
_END = -1
_BLOCK = 20_000  # sentences

BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
"""The pieces of single bytes, with which ``byte_fallback`` writes unknown characters."""

_Edge = tuple[int, int, float]
"""A piece in a word: the boundary where it ends, its id, and a score or a probability."""


class WordSampler(ABC):
    """The contract: draw a segmentation of each word of a text.

    A word with an unknown piece, or with bytes, keeps the segmentation that the tokenizer gives it.

    Args:
        hf: the trained tokenizer.
        words: the tokenizer's own segmentation of each distinct word, (W,).
        unknown: the id of unknown pieces.
    """

    def __init__(self, hf: HFTokenizer, words: Ragged, *, unknown: int) -> None:
        self._model: dict[str, Any] = json.loads(hf.to_str())["model"]
        of_bytes = BYTES if self._model.get("byte_fallback") else ()
        strange = {unknown, *map(hf.token_to_id, of_bytes)}
        self._known = [
            (own, "" if strange & {*own} else "".join(hf.id_to_token(i) or "" for i in own))
            for own in (ids.tolist() for ids in words)
        ]

    @abstractmethod
    def sample(self, words: Rows, random: np.random.Generator) -> Ragged:
        """Return a segmentation of each of ``words`` (N,), which are numbers below W."""


class DropoutSampler(WordSampler):
    """BPE-dropout: before every merge, each possible merge is left out with a probability.

    Of those that are left, the first in the order of training is made, where it comes first in the
    word, until none is left.

    Source: Provilkov et al. 2020, arXiv:1910.13267, alg. 1.
    """

    def __init__(self, hf: HFTokenizer, words: Ragged, *, unknown: int, dropout: float) -> None:
        super().__init__(hf, words, unknown=unknown)
        vocab: dict[str, int] = self._model["vocab"]
        self._dropout = dropout
        self._n_pieces = len(vocab)
        merges = [(vocab[a], vocab[b], vocab[a + b]) for a, b in self._model["merges"]]
        table = np.array(merges, dtype=np.int64).reshape(-1, 3)
        keys = table[:, 0] * self._n_pieces + table[:, 1]
        self._rank = np.argsort(keys)  # (M,)
        self._keys = np.append(keys[self._rank], -1)  # the last one is that of no pair
        self._merged = table[:, 2]
        self._characters = Ragged.of(
            [[vocab[x] for x in text] if text else own for own, text in self._known]
        )

    def sample(self, words: Rows, random: np.random.Generator) -> Ragged:
        text = self._characters.take(words)
        pieces = text.flat.astype(np.int64)
        word = np.repeat(np.arange(len(words)), text.lengths)
        results: list[tuple[Rows, Rows]] = []
        while len(pieces):
            rank = self._ranks(pieces, word, random)
            starts = np.flatnonzero(np.diff(word, prepend=-1))
            lengths = np.diff(starts, append=len(word))
            best = np.repeat(np.minimum.reduceat(rank, starts), lengths)
            is_done = best == _NO_MERGE
            results.append((word[is_done], pieces[is_done]))
            at = np.flatnonzero((rank == best) & ~is_done)
            first = at[np.diff(word[at], prepend=-1) > 0]
            pieces[first] = self._merged[rank[first]]
            is_done[first + 1] = True  # the second piece of the pair
            pieces, word = pieces[~is_done], word[~is_done]
        return _in_order(results, len(words))

    def _ranks(self, pieces: Rows, word: Rows, random: np.random.Generator) -> Rows:
        """Return the rank of the merge of each piece with the next, or `_NO_MERGE`."""
        ranks = np.full(len(pieces), _NO_MERGE)
        is_pair = word[:-1] == word[1:]
        keys = np.where(is_pair, pieces[:-1] * self._n_pieces + pieces[1:], -2)
        at = np.searchsorted(self._keys[:-1], keys)
        possible = np.flatnonzero(self._keys[at] == keys)
        possible = possible[random.random(len(possible)) >= self._dropout]
        ranks[possible] = self._rank[at[possible]]
        return ranks


class LatticeSampler(WordSampler):
    """Subword regularisation: a segmentation x has the probability P(x)^alpha / sum P^alpha.

    The sum is over all segmentations of a word, and P the product of its pieces' probabilities. The
    products of all ways from each boundary to the end of a word are summed beforehand; pieces are
    then drawn from the beginning on. At alpha 0 all segmentations are alike; the larger, the more
    often the likeliest.

    Source: Kudo 2018, arXiv:1804.10959, sec. 3.3, with l infinite.
    """

    def __init__(self, hf: HFTokenizer, words: Ragged, *, unknown: int, alpha: float) -> None:
        super().__init__(hf, words, unknown=unknown)
        pieces: list[tuple[str, float]] = self._model["vocab"]
        self._index = {piece: (i, alpha * score) for i, (piece, score) in enumerate(pieces)}
        self._longest = max(len(piece) for piece, _ in pieces)
        first: list[int] = []
        last: list[int] = []
        bounds: list[float] = []
        ids: list[int] = []
        ends: list[int] = []
        for own, text in self._known:
            first.append(len(last))  # the number of the word's first boundary
            for edges in _with_shares(self._edges(own, text)):
                total = 0.0
                for end, piece, share in edges:
                    total += share
                    bounds.append(len(last) + total)
                    ids.append(piece)
                    ends.append(first[-1] + end)
                last.append(len(bounds) - 1)
            last.append(_END)
        self._first, self._last = np.array(first, np.int64), np.array(last, np.int64)
        self._bounds = np.array(bounds, np.float64)
        self._ids, self._ends = np.array(ids, np.int64), np.array(ends, np.int64)

    def sample(self, words: Rows, random: np.random.Generator) -> Ragged:
        at, word = self._first[words], np.arange(len(words))
        results: list[tuple[Rows, Rows]] = []
        while len(at):
            edge = np.searchsorted(self._bounds, at + random.random(len(at)), side="right")
            edge = np.minimum(edge, self._last[at])  # shares add up to 1 but for rounding
            results.append((word, self._ids[edge]))
            at = self._ends[edge]
            is_within = self._last[at] != _END
            at, word = at[is_within], word[is_within]
        return _in_order(results, len(words))

    def _edges(self, own: list[int], text: str) -> list[list[_Edge]]:
        """Return the pieces that may follow each boundary of a word, with their log P^alpha.

        The tokenizer's own segmentation is the only one if there is no text.
        """
        if not text:
            return [[(start + 1, piece, 0.0)] for start, piece in enumerate(own)]
        return [
            [
                (end, *self._index[text[start:end]])
                for end in range(start + 1, min(start + self._longest, len(text)) + 1)
                if text[start:end] in self._index
            ]
            for start in range(len(text))
        ]


class WordNumbers:
    """Numbers the distinct words of a text, by the tokenizer's segmentation, as they occur."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, ids: Sequence[int], word_of: Sequence[int | None]) -> list[int]:
        """Return the numbers of the words of a sentence, of which each piece is in a word."""
        pairs = zip(ids, word_of, strict=True)
        words = [tuple(i for i, _ in word) for _, word in groupby(pairs, itemgetter(1))]
        return [self._numbers.setdefault(word, len(self._numbers)) for word in words]

    def segmentations(self) -> Ragged:
        return Ragged.of(list(self._numbers))


def resampled(
    own: Ragged, words: Ragged, sampler: WordSampler, max_len: int, random: np.random.Generator
) -> Ragged:
    """Return sentences in a segmentation that is drawn anew, block by block.

    ``own`` is the tokenizer's, with an end token; a sentence keeps it where another has more than
    ``max_len`` tokens. ``words`` are the numbers of their words.
    """
    blocks: list[Ragged] = []
    for start in range(0, len(own), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(own)))
        block, of_block = own.take(rows), words.take(rows)
        sample = sampler.sample(of_block.flat.astype(np.int64), random)
        ends = np.concatenate([[0], np.cumsum(sample.lengths)])[of_block.starts + of_block.lengths]
        flat = np.insert(sample.flat, ends, block.flat[block.starts + block.lengths - 1])
        lengths = np.diff(ends, prepend=0) + 1
        both = Ragged(np.concatenate([flat, block.flat]), np.concatenate([lengths, block.lengths]))
        row = np.arange(len(block))
        blocks.append(both.take(np.where(lengths <= max_len, row, row + len(block))))
    flat = np.concatenate([block.flat for block in blocks])
    return Ragged(flat, np.concatenate([block.lengths for block in blocks]))


def _with_shares(edges: list[list[_Edge]]) -> list[list[_Edge]]:
    """Return edges with, in place of a score, the share of all ways from where one begins."""
    rest = [0.0] * (len(edges) + 1)  # log of the sum over all ways from a boundary to the end
    for start in reversed(range(len(edges))):
        ways = [score + rest[end] for end, _, score in edges[start]]
        most = max(ways)
        rest[start] = most + math.log(sum(math.exp(way - most) for way in ways))
    return [
        [(end, piece, math.exp(score + rest[end] - rest[start])) for end, piece, score in outgoing]
        for start, outgoing in enumerate(edges)
    ]


def _in_order(results: Sequence[tuple[Rows, Rows]], n: int) -> Ragged:
    """Return the pieces of each of ``n`` words, from arrays of words and of a piece of each."""
    word = np.concatenate([np.empty(0, np.int64), *(words for words, _ in results)])
    pieces = np.concatenate([np.empty(0, np.int64), *(pieces for _, pieces in results)])
    order = np.argsort(word, kind="stable")
    return Ragged(pieces[order].astype(np.int32), np.bincount(word, minlength=n))
