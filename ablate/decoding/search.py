"""What a search is: where it starts, and how it goes on from token to token.

B sentences, S source tokens, K beams per sentence, C candidates per beam, V target vocabulary. A
translation ends in EOS, which counts in its length and its probability and is left out of its
tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.data.tokenizer import PAD
from ablate.decoding.candidates import Limits
from ablate.decoding.decode_loop import CapturedDecodeLoop, DecodeLoop
from ablate.model import Transformer
from ablate.registry import Part


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
    """What a search has reached: K beams for each of B sentences.

    A subclass is a dataclass whose tensors all have the sentences as their first dimension. All
    that changes from token to token is in them, and to go on takes no look at a number: it is
    recorded once and replayed (`ablate.cuda_graphs`).
    """

    @abstractmethod
    def last(self, n: Tensor) -> Tensor:
        """Return the token before token number ``n``, from 1, (1,), of every beam, (B, K)."""

    @abstractmethod
    def advance(self, log_p: Tensor, tokens: Tensor, n: Tensor) -> Tensor | None:
        """Write token number ``n``; sentences that are done must not change any more.

        Args:
            log_p: of the C likeliest tokens after every beam, likeliest first, (B, K, C).
            tokens: which they are, (B, K, C).
            n: which token, from 1, (1,).

        Returns:
            Which of its sentence's old beams each new one continues, (B, K); None if each
            continues itself.
        """

    @abstractmethod
    def is_done(self) -> Tensor:
        """Return whether each sentence has all that was searched for, (B,)."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return what was found for each sentence, best first."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what changes, by the names of the fields."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in held.items() if isinstance(x, Tensor)}

    def select(self, sentences: Tensor) -> Self:
        """Return the frontier of some of the ``sentences`` (B',), by number."""
        kept = {name: x.index_select(0, sentences) for name, x in self.tensors().items()}
        return replace(self, **kept)


class Search(Part, slot="decoding"):
    """The contract: a search says where it starts, and its `SearchState` how it goes on.

    A target is at most ``max_extra`` tokens longer than its source (Vaswani et al. 2017, sec. 6.1,
    allow 50), and never longer than the model; at the limit it ends in EOS, at the price of EOS.

    Args:
        max_extra: target tokens beyond those of the source.
        n_beams: K, rows per sentence.
        n_candidates: C, of how many tokens after a beam it wants to know; V if there are fewer.
    """

    def __init__(self, max_extra: int, n_beams: int = 1, n_candidates: int = 1) -> None:
        self.max_extra = max_extra
        self.n_beams = n_beams
        self.n_candidates = n_candidates

    @abstractmethod
    def start(self, longest: Tensor) -> SearchState:
        """Return the frontier before the first token.

        Args:
            longest: the most tokens of each translation, EOS included, (B,).
        """

    def search(
        self,
        model: Transformer,
        src: Tensor,
        n_tokens: Tensor | None = None,
        capturer: GraphCapturer | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate ``src`` (B, S); return the hypotheses of each sentence, best first.

        Args:
            model: in evaluation mode, on the device of ``src``.
            src: ids that end in EOS, padded at the end.
            n_tokens: target tokens, EOS included, that every hypothesis must have, (B,): the
                fixed amount of work that a measurement of speed needs.
            capturer: records what a token takes; without one it is done as it is.
        """
        longest = self._longest(model, src) if n_tokens is None else n_tokens
        limits = Limits(longest, is_exact=n_tokens is not None)
        start = self, model, src, limits
        return (
            DecodeLoop(*start) if capturer is None else CapturedDecodeLoop(*start, capturer)
        ).run()

    def _longest(self, model: Transformer, src: Tensor) -> Tensor:
        return ((src != PAD).sum(dim=1) + self.max_extra).clamp(max=model.max_len)
