"""What a search needs of a model.

B sentences, S source tokens, N decoded rows, D width of the last hidden states, V target
vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ablate.model.state import DecoderState


class Output(Protocol):
    """Makes logits from the last hidden states."""

    @property
    def n_tgt(self) -> int:
        """Return V."""

    def rows_at_once(self, device: torch.device, dtype: torch.dtype = ...) -> int:
        """Return for how many rows to compute logits at a time, where they are not kept."""

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (..., V) from hidden states (..., D)."""


class Decodable(nn.Module, ABC):
    """A model, or an ensemble, that translates token by token.

    Attributes:
        max_len: longest sequence on either side, in tokens.
    """

    max_len: int

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
