"""Encoded text, and batches of it bounded by target tokens.

B batch, S source tokens, T target tokens, N sentences.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.config.experiment import BatchBy
from ablate.data.corpus import Bitext
from ablate.data.segmentation import WordSampler, resampled
from ablate.data.sentences import Ragged, Rows
from ablate.data.tokenizer import BOS, TokenizerPair


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
        return Encoded(self.src.take(rows), self.tgt.take(rows))

    def of_epoch(self, seed: int, epoch: int) -> Encoded:
        """Return the split as it is segmented in an epoch: the same in all of them."""
        return self


@dataclass(frozen=True)
class Resampled(Encoded):
    """A split that is segmented anew in every epoch; its own ids are the tokenizer's segmentation.

    Attributes:
        words: the numbers of the words of each sentence, on both sides.
        samplers: draw segmentations of the words of each side.
        max_len: a sentence that would have more tokens keeps the tokenizer's segmentation.
    """

    words: Encoded
    samplers: tuple[WordSampler, ...]
    max_len: int

    def of_epoch(self, seed: int, epoch: int) -> Encoded:
        """Return the split as it is segmented in an epoch; seed and epoch alone determine it.

        Its ids are in memory, 4 bytes each.
        """
        owns, words = (self.src, self.tgt), (self.words.src, self.words.tgt)
        src, tgt = (
            resampled(own, of_own, sampler, self.max_len, np.random.default_rng((seed, epoch, i)))
            for i, own, of_own, sampler in zip((1, 2), owns, words, self.samplers, strict=True)
        )
        return Encoded(src, tgt)


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
        src, tgt_in, tgt_out = (
            x.to(device, non_blocking=True) for x in (self.src, self.tgt_in, self.tgt_out)
        )
        return Batch(src, tgt_in, tgt_out, self.n_tokens, self.index)


class Batches:
    """Batches of about equal size, of pairs of about equal length.

    A batch has as many pairs as fit: rows times the longest target, or the bound of their bucket,
    is at most ``batch_tokens``. A longer pair is a batch of its own. The lengths (or buckets) that
    share a batch, and so the number of batches, are the same in every epoch; the assignment of
    pairs of equal length (or in a bucket) and the order of the batches depend on the seed and the
    epoch. By targets, at most 5% are padding, if the corpus allows it (`sorting`).

    Where the text is segmented anew in every epoch, all of this holds for the batches of one epoch
    (`of_epoch`): they are formed by the lengths that it has then, so that ``batch_tokens`` bounds
    memory in all of them, little is padding, and most shapes come back. Their number may differ.

    Args:
        data: the split.
        batch_tokens: target tokens of a batch, with padding.
        pad: the id of padding.
        device: of the batches.
        by: what the pairs of a batch have in common, as `TrainingSpec.batch_by`.
    """

    def __init__(
        self,
        data: Encoded,
        batch_tokens: int,
        pad: int,
        device: torch.device | str = "cpu",
        by: BatchBy = "target",
    ) -> None:
        self._data = data
        self._batch_tokens = batch_tokens
        self._pad = pad
        self._last_epoch: tuple[tuple[int, int], Batches] | None = None
        self._device = torch.device(device)
        self._by = by
        src, tgt = data.src.lengths, data.tgt.lengths
        widths = tgt
        if by == "target":
            self._keys = sorting(src, tgt, batch_tokens)
        elif by == "source":
            self._keys = (tgt, src)
        else:
            widths = bucket_bounds(np.maximum(src, tgt))
            self._keys = (widths,)
        self._by_length = np.lexsort(self._keys)
        self._bounds = bounds(widths[self._by_length], batch_tokens)

    @property
    def are_resampled(self) -> bool:
        """Return whether the text is segmented anew in every epoch."""
        return isinstance(self._data, Resampled)

    def of_epoch(self, seed: int, epoch: int) -> Batches:
        """Return the batches of the text as it is segmented in an epoch; these if it never changes.

        Estimates of the work of a training step use seed 0 and epoch 0, in every run.
        """
        if not self.are_resampled:
            return self
        if self._last_epoch is None or self._last_epoch[0] != (seed, epoch):
            data = self._data.of_epoch(seed, epoch)
            batches = Batches(data, self._batch_tokens, self._pad, self._device, self._by)
            self._last_epoch = (seed, epoch), batches
        return self._last_epoch[1]

    @property
    def mean_tokens(self) -> float:
        """Return how many target tokens a batch has on average, without padding."""
        return int(self._data.tgt.lengths.sum()) / self.n_per_epoch

    @property
    def n_per_epoch(self) -> int:
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
        n_src, n_tgt = (int(x.lengths[rows].max()) for x in (self._data.src, self._data.tgt))
        widths = n_src, n_tgt, n_tgt
        ids = np.full(len(rows) * sum(widths), self._pad, dtype=np.int64)
        src, tgt_in, tgt_out = _blocks(ids, len(rows), widths)
        src[:], _ = self._data.src.padded(rows, n_src, self._pad)
        tgt_out[:], is_token = self._data.tgt.padded(rows, n_tgt, self._pad)
        tgt_in[:, 1:] = np.where(is_token[:, 1:], tgt_out[:, :-1], self._pad)
        tgt_in[:, 0] = BOS
        moved = torch.from_numpy(ids)
        if self._device.type != "cpu":
            moved = moved.pin_memory().to(self._device, non_blocking=True)
        on_device = _blocks(moved, len(rows), widths)
        return Batch(*on_device, self.count_tokens(rows), torch.from_numpy(rows))

    def _split(self, order: Rows) -> list[Rows]:
        return [order[a:b] for a, b in itertools.pairwise(self._bounds)]


_T = TypeVar("_T", NDArray[np.int64], Tensor)


def _blocks(flat: _T, n_rows: int, widths: tuple[int, int, int]) -> tuple[_T, _T, _T]:
    """Return the parts of ``flat`` as matrices of ``n_rows`` rows and the given widths."""
    ends = [n_rows * end for end in itertools.accumulate(widths)]
    first, second, third = (
        flat[end - n_rows * width : end].reshape(n_rows, width)
        for end, width in zip(ends, widths, strict=True)
    )
    return first, second, third


_MAX_PADDING = 0.05  # share of all ids
_STRIPS = (0, 1, 2, 3, 4)  # batches of targets in a strip; 0 for no strips
_BUCKETS = (8, 12, 16, 20, 24, 32, 40, 56)  # each further one is sqrt(2) times as large


def sorting(src: Rows, tgt: Rows, batch_tokens: int) -> tuple[Rows, ...]:
    """Return the keys that pairs are sorted by, the primary one last, as for `numpy.lexsort`.

    Pairs are sorted by the lengths of their targets, then by those of their sources, both (N,). If
    that leaves more than 5% padding, because a batch has the end of one target length and the
    beginning of the next, neighbouring target lengths form strips, as narrow as possible, in which
    pairs are sorted by their sources: ascending in one strip, descending in the next. If every
    order leaves more padding, the one with the least is chosen.
    """
    best: tuple[Rows, ...] = ()
    least = math.inf
    for n_batches in _STRIPS:
        keys = _strips(src, tgt, n_batches * batch_tokens) if n_batches else (src, tgt)
        share = padding(src, tgt, np.lexsort(keys), batch_tokens)
        if share < least:
            best, least = keys, share
        if least <= _MAX_PADDING:
            break
    return best


def bucket_bounds(lengths: Rows) -> Rows:
    """Return the bound of the bucket of each of ``lengths`` (N,), the least that is as large."""
    steps = list(_BUCKETS)
    while steps[-1] < lengths.max(initial=0):
        steps.append(math.ceil(steps[-1] * math.sqrt(2)))
    return np.array(steps)[np.searchsorted(steps, lengths)]


def bounds(lengths: Rows, batch_tokens: int) -> list[int]:
    """Return the index at which each batch begins among targets of these ``lengths``, and the end.

    A batch is as large as possible: its rows times its longest target are at most
    ``batch_tokens``, unless it is a single pair.
    """
    starts = [0]
    while starts[-1] < len(lengths):
        start = starts[-1]
        max_rows = max(1, batch_tokens // int(lengths[start]))
        longest = np.maximum.accumulate(lengths[start : start + max_rows])
        fits = longest * np.arange(1, len(longest) + 1) <= batch_tokens
        starts.append(start + max(1, int(fits.sum())))
    return starts


def padding(src: Rows, tgt: Rows, order: Rows, batch_tokens: int) -> float:
    """Return the share of padding in all batches, both sides together."""
    if not len(order):
        return 0.0
    starts = np.array(bounds(tgt[order], batch_tokens))
    n_rows = np.diff(starts)
    n_ids = sum(np.maximum.reduceat(side[order], starts[:-1]) @ n_rows for side in (src, tgt))
    return 1 - float(src.sum() + tgt.sum()) / float(n_ids)


def _strips(src: Rows, tgt: Rows, n_tokens: int) -> tuple[Rows, ...]:
    """Return the sorting keys for strips of at least ``n_tokens`` target tokens."""
    tokens_of = np.bincount(tgt) * np.arange(tgt.max(initial=0) + 1)
    strip_of, strip, n_in_strip = np.zeros_like(tokens_of), 0, 0
    for length, n in enumerate(tokens_of):
        strip_of[length] = strip
        n_in_strip += n
        if n_in_strip >= n_tokens:
            strip, n_in_strip = strip + 1, 0
    strips = strip_of[tgt]
    return tgt, np.where(strips % 2, -src, src), strips
