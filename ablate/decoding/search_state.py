"""The state of a search between two tokens, and its results.

B sentences, S source tokens, K beams per sentence, C candidates per beam, V target vocabulary. A
translation ends in EOS, which counts in its length and its probability and is left out of its
tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS, PAD
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
            log_p: log-probabilities of the C likeliest tokens, likeliest first, (B, K, C); of all V
                in the order of their ids, if the search has no ``n_candidates``.
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


@dataclass
class TokenState(SearchState):
    """The tokens of all beams; each beam continues itself until EOS. L most target tokens."""

    tokens: Tensor  # BOS and the generated tokens, (B, K, 1 + L)
    log_p: Tensor  # of the generated tokens, (B, K)
    has_ended: Tensor  # whether EOS was generated, (B, K)

    def last_tokens(self, step: Tensor) -> Tensor:
        return self.tokens.index_select(-1, step - 1).squeeze(-1)

    def append(self, token: Tensor, log_p: Tensor, step: Tensor) -> None:
        """Add a token to every beam that has not ended; both are (B, K)."""
        self.log_p = torch.where(self.has_ended, self.log_p, self.log_p + log_p)
        self.tokens.index_copy_(-1, step, token.masked_fill(self.has_ended, PAD)[..., None])
        self.has_ended = self.has_ended | (token == EOS)

    def is_done(self) -> Tensor:
        return self.has_ended.all(dim=1)

    def hypotheses(self) -> list[list[Hypothesis]]:
        return [
            [
                Hypothesis(beam[1 : beam.index(EOS)], score=log_p, log_p=log_p)
                for beam, log_p in zip(*of_sentence, strict=True)
            ]
            for of_sentence in zip(self.tokens.tolist(), self.log_p.tolist(), strict=True)
        ]


def beginning(n_beams: int, max_lens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the fields of a `TokenState` before the first token, for ``max_lens`` (B,)."""
    shape = len(max_lens), n_beams
    tokens = max_lens.new_full((*shape, int(max_lens.max()) + 1), PAD)
    tokens[..., 0] = BOS
    log_p = torch.zeros(shape, device=max_lens.device)
    return tokens, log_p, torch.zeros_like(log_p, dtype=torch.bool)


@dataclass(frozen=True)
class SearchSetup:
    """What a `DecodeLoop` needs of a search."""

    initial_state: SearchState
    limits: LengthLimits
    n_beams: int  # K, rows per sentence
    n_candidates: int | None  # C, candidate tokens per beam, reduced to V; None: all, unsorted
    needs_attention: bool  # whether the state gets the cross-attention of every step
