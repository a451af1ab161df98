"""Encoded text, and batches of it bounded by target tokens.

B batch, S source tokens, T target tokens, N sentences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.data.corpus import Bitext
from ablate.data.sorting import bounds, sorting
from ablate.data.tokenizer import BOS, TokenizerPair

Ids = NDArray[np.int32]
Rows = NDArray[np.int64]


class Ragged(Sequence[Ids]):
    """Sentences of differing lengths, end to end in one array.

    Args:
        flat: all ids.
        lengths: of the sentences, in tokens, (N,).
    """

    def __init__(self, flat: Ids, lengths: Rows) -> None:
        self.flat = flat
        self.lengths = lengths
        self.starts = np.cumsum(lengths) - lengths

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> Ragged:
        """Lay ``sentences`` end to end."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        flat = np.empty(int(lengths.sum()), dtype=np.int32)
        end = 0
        for sentence in sentences:
            start, end = end, end + len(sentence)
            flat[start:end] = sentence
        return cls(flat, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Ids:  # type: ignore[override]  # no slices: see take
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        start = self.starts[row]
        return self.flat[start : start + self.lengths[row]]

    def take(self, rows: Rows) -> Ragged:
        """Return the sentences of ``rows``, in that order."""
        return self._pick(rows, self.lengths[rows])

    def cut(self, n_tokens: int) -> Ragged:
        """Return every sentence cut to ``n_tokens`` tokens, its last token kept."""
        short = np.minimum(self.lengths, n_tokens)
        cut = self._pick(np.arange(len(self)), short)
        cut.flat[cut.starts + short - 1] = self.flat[self.starts + self.lengths - 1]
        return cut

    def padded(self, rows: Rows, width: int, pad: int) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the sentences of ``rows`` (B,), filled up with ``pad``, and what is no padding.

        Both are (B, ``width``); none of the sentences is longer.
        """
        sentences = self.take(rows)
        is_token = np.arange(width) < sentences.lengths[:, None]
        ids = np.full(is_token.shape, pad, dtype=np.int64)
        ids[is_token] = sentences.flat
        return ids, is_token

    def _pick(self, rows: Rows, lengths: Rows) -> Ragged:
        """Return the first ``lengths`` tokens of the sentences of ``rows``."""
        ends = np.cumsum(lengths)
        shift = np.repeat(self.starts[rows] - (ends - lengths), lengths)
        return Ragged(self.flat[shift + np.arange(len(shift))], lengths)


@dataclass(frozen=True)
class Encoded:
    """One split as ids; every sentence ends in EOS, on both sides."""

    src: Ragged
    tgt: Ragged

    @classmethod
    def encode(cls, tokenizers: TokenizerPair, text: Bitext) -> Encoded:
        """Encode both sides of a split, or of a block of it."""
        return cls(
            Ragged.of(tokenizers.encode_src(text.src)), Ragged.of(tokenizers.encode_tgt(text.tgt))
        )

    def __len__(self) -> int:
        return len(self.src)

    def take(self, rows: Rows) -> Encoded:
        """Return the pairs of ``rows``, in that order."""
        return Encoded(self.src.take(rows), self.tgt.take(rows))


@dataclass(frozen=True)
class Batch:
    """Some pairs of a split, padded.

    Attributes:
        src: (B, S) long, sentences that end in EOS.
        tgt_in: (B, T) long, BOS and the tokens: the input of the decoder.
        tgt_out: (B, T) long, the tokens and EOS: the labels.
        n_tokens: target tokens that are not padding.
        index: (B,) long, the rows in the split; stays on the CPU.
    """

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    n_tokens: int
    index: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on ``device``."""
        src, tgt_in, tgt_out = (
            x.to(device, non_blocking=True) for x in (self.src, self.tgt_in, self.tgt_out)
        )
        return Batch(src, tgt_in, tgt_out, self.n_tokens, self.index)


class Batches:
    """Batches of about equal size, of pairs of about equal length.

    A batch has as many pairs as fit: rows times the longest target is at most ``batch_tokens``.
    A longer pair is a batch of its own. The lengths that share a batch, and so the number of
    batches, are the same in every epoch; the assignment of pairs of equal length and the order of
    the batches depend on the seed and the epoch. At most 5% are padding, if the corpus allows it
    (`ablate.data.sorting`).

    Args:
        data: the split.
        batch_tokens: target tokens of a batch, with padding.
        pad: the id of padding.
        device: of the batches.
    """

    def __init__(
        self, data: Encoded, batch_tokens: int, pad: int, device: torch.device | str = "cpu"
    ) -> None:
        self._data = data
        self._pad = pad
        self._device = torch.device(device)
        self._keys = sorting(data.src.lengths, data.tgt.lengths, batch_tokens)
        self._by_length = np.lexsort(self._keys)
        self._bounds = bounds(data.tgt.lengths[self._by_length], batch_tokens)

    @property
    def n_per_epoch(self) -> int:
        """Return the number of batches of every epoch."""
        return len(self._bounds) - 1

    def epoch(self, seed: int, epoch: int) -> list[Rows]:
        """Return the rows of each batch, in the order of training."""
        random = np.random.default_rng((seed, epoch))
        order = np.lexsort((random.random(len(self._data)), *self._keys))
        batches = self._split(order)
        return [batches[i] for i in random.permutation(len(batches))]

    def in_order(self) -> Iterator[Batch]:
        """Yield each pair once, roughly the shortest first, without randomness: for measuring."""
        return (self.make(rows) for rows in self._split(self._by_length))

    def count_tokens(self, rows: Rows) -> int:
        """Return the target tokens of ``rows``, without padding."""
        return int(self._data.tgt.lengths[rows].sum())

    def make(self, rows: Rows) -> Batch:
        """Return the pairs of ``rows`` as a padded batch.

        All ids go to the device in one copy, for which the host does not wait.
        """
        n_src, n_tgt = _longest(self._data.src, rows), _longest(self._data.tgt, rows)
        widths = n_src, n_tgt, n_tgt
        ids = np.full(len(rows) * sum(widths), self._pad, dtype=np.int64)
        src, tgt_in, tgt_out = _blocks(ids, len(rows), widths)
        src[:], _ = self._data.src.padded(rows, n_src, self._pad)
        tgt_out[:], is_token = self._data.tgt.padded(rows, n_tgt, self._pad)
        tgt_in[:, 1:] = np.where(is_token[:, 1:], tgt_out[:, :-1], self._pad)
        tgt_in[:, 0] = BOS
        on_device = _blocks(self._moved(torch.from_numpy(ids)), len(rows), widths)
        return Batch(*on_device, self.count_tokens(rows), torch.from_numpy(rows))

    def _moved(self, ids: Tensor) -> Tensor:
        if self._device.type == "cpu":
            return ids
        return ids.pin_memory().to(self._device, non_blocking=True)

    def _split(self, order: Rows) -> list[Rows]:
        return [order[a:b] for a, b in itertools.pairwise(self._bounds)]


def _longest(side: Ragged, rows: Rows) -> int:
    return int(side.lengths[rows].max(initial=0))


_T = TypeVar("_T", NDArray[np.int64], Tensor)


def _blocks(flat: _T, n_rows: int, widths: tuple[int, int, int]) -> tuple[_T, _T, _T]:
    """Return the parts of ``flat`` as matrices of ``n_rows`` rows and the given widths."""
    ends = [n_rows * end for end in itertools.accumulate(widths)]
    first, second, third = (
        flat[end - n_rows * width : end].reshape(n_rows, width)
        for end, width in zip(ends, widths, strict=True)
    )
    return first, second, third
