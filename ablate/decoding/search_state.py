"""How far a search is, and what it ends with.

B sentences, K beams per sentence, C candidates per beam, V target vocabulary. A translation ends in
EOS, which counts in its length and its probability and is left out of its tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import Tensor

from ablate.decoding.candidates import Limits


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    Attributes:
        tokens: without BOS and EOS.
        score: what the search ranks by.
        log_p: natural logarithm of its probability given the source, EOS included; the
            probabilities are the model's own, of all V tokens.
    """

    tokens: list[int]
    score: float
    log_p: float


@dataclass
class SearchState(ABC):
    """How far a search is: K beams for each of B sentences.

    A subclass is a dataclass whose tensors all have the sentences as their first dimension. All
    that changes from token to token is in them, and no step asks for a number: it is captured once
    and replayed (`ablate.cuda_graphs`). A search for which this does not hold declares a
    ``capture_blocker``.
    """

    @abstractmethod
    def last_tokens(self, step: Tensor) -> Tensor:
        """Return the token before number ``step`` (1,), from 1, of every beam, (B, K)."""

    @abstractmethod
    def advance(self, log_p: Tensor, tokens: Tensor, step: Tensor) -> Tensor | None:
        """Write token number ``step``; sentences that are done must not change any more.

        Args:
            log_p: of the C likeliest tokens after every beam, likeliest first, (B, K, C).
            tokens: which they are, (B, K, C).
            step: number of the token, from 1, on the device, (1,).

        Returns:
            Which of its sentence's old beams each new one continues, (B, K); None if each
            continues itself.
        """

    def observe_source(self, weights: Tensor) -> None:
        """Note what the decoder attends to before `advance`, if the search asks for it.

        Args:
            weights: that it gives to the source, (B, K, S); (B, 1, S) while all beams are alike.
        """
        raise NotImplementedError(f"{type(self).__name__} asks for weights and takes none")

    @abstractmethod
    def is_done(self) -> Tensor:
        """Return whether the search has ended for each sentence, (B,)."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, by the names of the fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in values.items() if isinstance(x, Tensor)}

    def select(self, sentences: Tensor) -> Self:
        """Return the search state of the ``sentences`` with these indices, (B',)."""
        kept = {name: x.index_select(0, sentences) for name, x in self.tensors().items()}
        return replace(self, **kept)


@dataclass(frozen=True)
class SearchSetup:
    """What a search looks for, and where it starts.

    Attributes:
        start: the state before the first token.
        limits: of the sentences.
        n_beams: K, rows per sentence.
        n_candidates: C, the likeliest tokens after a beam that it asks for; V if there are fewer.
        observes_source: whether it asks for what the decoder attends to.
    """

    start: SearchState
    limits: Limits
    n_beams: int
    n_candidates: int
    observes_source: bool = False
