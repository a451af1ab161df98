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

from ablate.model.state import State


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
    """A model, or several, from which a translation is written token by token.

    Attributes:
        max_len: longest sequence on either side, in tokens.
    """

    max_len: int

    @property
    @abstractmethod
    def output(self) -> Output:
        """Return what makes logits from the hidden states of `feed`."""

    @property
    @abstractmethod
    def cache_width(self) -> int:
        """Return how many numbers the keys of one token have, of all decoder layers."""

    @abstractmethod
    def start(self, src: Tensor, length: int) -> State:
        """Encode ``src`` (B, S) and prepare to write up to ``length`` tokens, a row a sentence."""

    @abstractmethod
    def observe_source(self, observer: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``observer`` in every `feed`, until the handle is removed, with what is attended to.

        It gets the weights that the last decoder layer's attention gives to the source, the mean
        over its heads: (B, K, S) with K rows of each sentence.
        """

    @abstractmethod
    def feed(self, tokens: Tensor, state: State) -> Tensor:
        """Feed one token per row, ``tokens`` (N,); return the last hidden states (N, D)."""
