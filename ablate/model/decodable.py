"""What a search needs of a model: the interface, and the state of token-by-token decoding.

B sentences, S source tokens, T target tokens, N decoded rows, D width of the last hidden states, V
target vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ablate.parts.attention import KVCache, StaticKVCache


@dataclass(frozen=True)
class Memory:
    """The encoder's output; ``mask`` is True where there is a token."""

    states: Tensor  # (B, S, D)
    mask: Tensor  # (B, 1, 1, S)


class DecoderState:
    """The state of token-by-token decoding: N rows, to each of which ``length`` tokens were fed."""

    def __init__(self, layers: list[tuple[KVCache, KVCache]], mask: Tensor) -> None:
        self.layers = layers  # caches of the target, a row a beam, and the source, a row a sentence
        self.mask = mask  # True where there is a source token, (N / n_beams, 1, 1, S)
        self.n_beams = 1  # rows of a sentence; those of sentence b are b * n_beams and following
        self.length = 0
        self.capacity: int | None = None  # tokens that fixed buffers hold; None while buffers grow
        self._next_position = mask.new_empty(0, dtype=torch.long)

    @property
    def n_rows(self) -> int:
        """Return N."""
        return self.mask.size(0) * self.n_beams

    @property
    def next_position(self) -> Tensor:
        """Return the position of the next tokens, (1,)."""
        if self.capacity is not None:
            return self._next_position
        return torch.tensor([self.length], device=self.mask.device)

    def key_positions(self) -> Tensor:
        """Return the positions of the tokens in the caches, including the next ones, (T,).

        Fixed buffers have all positions up to their capacity, and the decoder's mask hides those
        after the next tokens.
        """
        return torch.arange(self.capacity or self.length + 1, device=self.mask.device)

    def count_token(self) -> None:
        """Update the positions after one more token was fed to every row."""
        self.length += 1
        if self.capacity is not None:
            self._next_position += 1

    @torch.no_grad()
    def fix_buffers(self, capacity: int) -> None:
        """Move the caches to buffers of fixed size and address, for up to ``capacity`` tokens.

        From then on feeding a token is the same work on the same memory every time, so that it can
        be captured in a CUDA graph. At least one token must have been fed.
        """
        self._next_position = self.next_position
        self.capacity = capacity
        self.layers = [
            (StaticKVCache(target, self.length, capacity), source) for target, source in self.layers
        ]

    def shallow_copy(self) -> DecoderState:
        """Return another state that shares the tensors of this one."""
        other = copy(self)
        other.layers = [(copy(target), copy(source)) for target, source in self.layers]
        return other

    @torch.no_grad()
    def widen(self, n_beams: int) -> None:
        """Repeat every row ``n_beams`` times, the copies next to each other."""
        rows = torch.arange(self.n_rows, device=self.mask.device).repeat_interleave(n_beams)
        self.select(rows)
        self.n_beams *= n_beams

    @torch.no_grad()
    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep some rows in a new order, some perhaps several times; those of a sentence together.

        ``sentences`` are those that the rows belong to, in that order; None if all stay in place.
        """
        for target, source in self.layers:
            target.select(rows, self.length)
            if sentences is not None:
                source.select(sentences, self.mask.size(-1))
        if sentences is not None:
            self.mask = self.mask.index_select(0, sentences)


class Output(Protocol):
    """Makes logits from the last hidden states."""

    @property
    def n_tgt(self) -> int:
        """Return V."""

    def rows_at_once(self, device: torch.device) -> int:
        """Return for how many rows to compute logits at a time, where they are not kept."""

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (..., V) from hidden states (..., D)."""


class Decodable(nn.Module, ABC):
    """A model, or an ensemble, that translates token by token."""

    max_len: int  # longest sequence on either side, in tokens

    @property
    @abstractmethod
    def output(self) -> Output:
        """Return the layer that computes logits from the hidden states of `feed`."""

    @property
    @abstractmethod
    def cache_width(self) -> int:
        """Return about the elements of one token's keys in all decoder layers: d_model for each.

        Attentions may have fewer or more. Batches are as large as this allows, and rounding depends
        on their size.
        """

    @abstractmethod
    def start(self, src: Tensor, length: int) -> DecoderState:
        """Encode ``src`` (B, S); return a state for up to ``length`` tokens, one row a sentence."""

    @abstractmethod
    def register_cross_attention_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``hook`` with the cross-attention weights of every `feed`, until it is removed.

        The weights are those of the last decoder layer, the mean over its heads: (B, K, S) with K
        rows of each sentence.
        """

    @abstractmethod
    def feed(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed one token per row, ``tokens`` (N,); return the last hidden states (N, D)."""
