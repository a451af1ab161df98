"""The state of a search between two tokens, and its results.

B sentences, S source tokens, K beams per sentence, C candidates per beam, V target vocabulary. A
translation ends in EOS, which counts in its length and its probability and is left out of its
tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import Tensor

from ablate.decoding.candidates import LengthLimits


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence."""

    tokens: list[int]  # without BOS and EOS
    score: float  # by which the search ranks hypotheses
    log_p: float  # given the source, EOS included; the model's own, of all V tokens, in nats


@dataclass
class SearchState(ABC):
    """The state of a search: K beams for each of B sentences.

    A subclass is a dataclass whose tensors all have the sentences as their first dimension. Only
    these tensors change from token to token, and no step waits for the device, because a step is
    captured once and replayed (`ablate.cuda_graphs`). A search for which this does not hold
    declares a ``capture_blocker``.
    """

    @abstractmethod
    def last_tokens(self, step: Tensor) -> Tensor:
        """Return the token before number ``step`` (1,), from 1, of every beam, (B, K)."""

    @abstractmethod
    def advance(self, log_p: Tensor, tokens: Tensor, step: Tensor) -> Tensor | None:
        """Choose token number ``step``; sentences that are done must not change any more.

        Args:
            log_p: log-probabilities of the C likeliest tokens, likeliest first, (B, K, C).
            tokens: their ids, (B, K, C).
            step: number of the token, from 1, on the device, (1,).

        Returns:
            For each new beam the index of the old beam of its sentence that it continues, (B, K);
            None if each continues itself.
        """

    def observe_attention(self, weights: Tensor) -> None:
        """Receive the cross-attention weights before `advance`, if the search needs them.

        They are (B, K, S), or (B, 1, S) while all beams are equal.
        """
        raise NotImplementedError(f"{type(self).__name__} has no observe_attention")

    @abstractmethod
    def is_done(self) -> Tensor:
        """Return whether the search has ended for each sentence, (B,)."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first."""

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in values.items() if isinstance(x, Tensor)}

    def select(self, sentences: Tensor) -> Self:
        """Return the search state of the ``sentences`` with these indices, (B',)."""
        selected = {name: x.index_select(0, sentences) for name, x in self.tensors().items()}
        return replace(self, **selected)


@dataclass(frozen=True)
class SearchSetup:
    """What a `DecodeLoop` needs of a search."""

    initial_state: SearchState
    limits: LengthLimits
    n_beams: int  # K, rows per sentence
    n_candidates: int  # C, candidate tokens per beam, reduced to V where it is larger
    needs_attention: bool  # whether the state gets the cross-attention of every step
