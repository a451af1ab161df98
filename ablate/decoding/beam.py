"""Beam search, for all sentences of a batch at once and on the device.

B sentences, K beams, L most target tokens, V target vocabulary. |Y| is a length in tokens, EOS
included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from ablate.data.tokenizer import EOS, PAD
from ablate.decoding.search import Search
from ablate.decoding.search_state import Hypothesis, SearchState, TokenState, beginning
from ablate.registry import AddedOption, register

Alpha = Annotated[NonNegativeFloat | Literal["none"], AfterValidator(lambda a: a or "none")]
"""Strength of the length penalty; 0 and ``none`` are one and the same."""


@register("beam", source="Wu et al. 2016, arXiv:1609.08144, sec. 7")
class Beam(Search):
    """Keep the ``size`` likeliest partial hypotheses at every step, for every sentence.

    A beam that ends in EOS keeps its row until the sentence is done, so that fewer live beams
    remain, as in Bahdanau et al.'s GroundHog and in Marian. A sentence is done when every beam has
    ended, or when no live beam can score higher than the ``n_best`` best ended beams. With a size
    of 1 this is greedy search. Wu et al. also prune by score, which is left out.

    Args:
        size: beams per sentence; 4 in Vaswani et al. 2017, sec. 6.1.
        length_penalty: alpha in score = log p / penalty, where |Y| counts EOS; ``none`` ranks by
            log p; 0.6 in Vaswani et al., 0.2 in Wu et al.
        penalty_form: ``gnmt``: ((5 + |Y|) / 6)^alpha, eq. 14; ``power``: |Y|^alpha, which with
            alpha 1 ranks by the mean log p of a token, as ``--lenpen`` of fairseq
            (sequence_generator.py; Ott et al. 2019, arXiv:1904.01038).
        coverage: beta of eq. 14: the score of a beam that has ended gains beta times the sum, over
            the source's tokens, of ln min(1, sum over the target of the attention to that token);
            attention is the mean over the heads of the last decoder layer; 0.2 in Wu et al.
        n_best: hypotheses to return per sentence, at most ``size``.

    Raises:
        ValueError: if ``n_best`` exceeds ``size``; if a length penalty of ``none`` has a form.
    """

    def __init__(
        self,
        *,
        size: PositiveInt = 5,
        length_penalty: Alpha = 0.6,
        penalty_form: Annotated[Literal["gnmt", "power"], AddedOption("gnmt")] = "gnmt",
        coverage: Annotated[NonNegativeFloat, AddedOption(0.0)] = 0.0,
        n_best: PositiveInt = 1,
        max_extra: NonNegativeInt = 50,
    ) -> None:
        super().__init__(max_extra, n_beams=size, n_candidates=size)
        if n_best > size:
            raise ValueError(f"n_best ({n_best}) is more than the beam's size ({size})")
        if length_penalty == "none" and penalty_form != "gnmt":
            raise ValueError(
                f"without a length penalty its form ({penalty_form}) makes no difference; leave "
                "out penalty_form, or give length_penalty a number"
            )
        self.alpha = 0.0 if length_penalty == "none" else length_penalty
        self.penalty_form = penalty_form
        self.coverage = coverage
        self.needs_attention = coverage > 0
        self.n_best = n_best

    def initial_state(self, src: Tensor, max_lens: Tensor) -> SearchState:
        tokens, log_p, has_ended = beginning(self.n_beams, max_lens)
        scores = torch.full_like(log_p, -torch.inf)
        log_p[:, 1:] = -torch.inf  # all beams are BOS alone, so only one may be extended
        state = _BeamState(tokens, log_p, has_ended, self, max_lens, scores)
        if self.coverage:
            state.is_source = src != PAD
            state.attention_sums = torch.zeros(*log_p.shape, src.size(1), device=src.device)
        return state

    def penalty(self, length: Tensor) -> Tensor:
        """Return what log p is divided by for |Y| = ``length``."""
        base = (5 + length.double()) / 6 if self.penalty_form == "gnmt" else length.double()
        return (base**self.alpha).float()


@dataclass
class _BeamState(TokenState):
    """The beams of every sentence; those that have ended keep their rows.

    A beam with a log-probability of -inf is empty.
    """

    search: Beam
    max_lens: Tensor  # the most tokens of each translation, EOS included, (B,)
    scores: Tensor  # of the beams that have ended, (B, K); of the others, -inf
    is_source: Tensor | None = None  # where the source has a token, (B, S), for a coverage penalty
    # Attention to each source token, summed over the target so far, (B, K, S); of no meaning for
    # beams that have ended
    attention_sums: Tensor | None = None

    def observe_attention(self, weights: Tensor) -> None:
        assert self.attention_sums is not None, "there is a coverage penalty"
        self.attention_sums = self.attention_sums + weights

    def advance(self, log_p: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
        live = self._live_log_p()[..., None]
        best, index = (live + log_p).flatten(1).topk(self.search.n_beams)  # (B, K)
        rank = ((~self.has_ended).cumsum(dim=1) - 1).clamp(min=0)  # best to the first live beam
        best, index = best.gather(1, rank), index.gather(1, rank)
        beams = torch.arange(self.search.n_beams, device=index.device)
        parents = torch.where(self.has_ended, beams, index // log_p.size(-1))
        token = tokens.flatten(1).gather(1, index).masked_fill(self.has_ended, PAD)
        self.log_p = torch.where(self.has_ended, self.log_p, best)
        self.tokens = self.tokens.gather(1, parents[..., None].expand_as(self.tokens))
        self.tokens.index_copy_(-1, step, token[..., None])
        ends = (token == EOS) & (self.log_p != -torch.inf)
        scores = self.log_p / self.search.penalty(step)
        if self.attention_sums is not None and self.is_source is not None:
            self.attention_sums = self.attention_sums.gather(
                1, parents[..., None].expand_as(self.attention_sums)
            )
            log = self.attention_sums.clamp(torch.finfo(torch.float32).tiny, 1.0).log()
            scores = scores + self.search.coverage * (log * self.is_source[:, None]).sum(dim=-1)
        self.scores = torch.where(ends, scores, self.scores)
        self.has_ended = self.has_ended | ends
        # Early stopping: live beams of a sentence are dropped once none can enter its `n_best`.
        # Log-probabilities only fall, the length penalty only grows with length and the coverage
        # term is at most 0, so log p / penalty(max_lens) bounds the score that one can reach
        best_log_p = self._live_log_p().max(dim=1).values  # (B,)
        best_attainable = best_log_p / self.search.penalty(self.max_lens)
        is_settled = self.scores.topk(self.search.n_best).values[:, -1] >= best_attainable
        self.log_p = self.log_p.masked_fill(is_settled[:, None] & ~self.has_ended, -torch.inf)
        return parents

    def is_done(self) -> Tensor:
        return (self._live_log_p() == -torch.inf).all(dim=1)

    def hypotheses(self) -> list[list[Hypothesis]]:
        scores, order = self.scores.sort(dim=1, descending=True, stable=True)
        tokens = self.tokens.gather(1, order[..., None].expand_as(self.tokens))
        ended = self.has_ended.gather(1, order)
        columns = tokens, scores, self.log_p.gather(1, order), ended
        return [
            [
                Hypothesis(beam[1 : beam.index(EOS)], score, log_p)
                for beam, score, log_p, has_ended in zip(*of_sentence, strict=True)
                if has_ended
            ][: self.search.n_best]
            for of_sentence in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _live_log_p(self) -> Tensor:
        """Return the log-probabilities of the beams that have not ended, -inf for the others."""
        return self.log_p.masked_fill(self.has_ended, -torch.inf)
