"""Greedy search: always the likeliest next token. B sentences, L most target tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding.search import Search
from ablate.decoding.search_state import Hypothesis, SearchState
from ablate.registry import register


@register("greedy", source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.2, beam of size 1")
class Greedy(Search):
    """Take the likeliest token at every step; the score is the log-probability.

    Args:
        max_extra: target tokens beyond those of the source.
    """

    def __init__(self, *, max_extra: NonNegativeInt = 50) -> None:
        super().__init__(max_extra)

    def initial_state(self, src: Tensor, max_lens: Tensor) -> SearchState:
        tokens = max_lens.new_full((len(max_lens), int(max_lens.max()) + 1), PAD)
        tokens[:, 0] = BOS
        log_p = torch.zeros(len(max_lens), device=max_lens.device)
        return _GreedyState(tokens, log_p, has_ended=torch.zeros_like(max_lens, dtype=torch.bool))


@dataclass
class _GreedyState(SearchState):
    """One beam per sentence."""

    tokens: Tensor  # BOS and the generated tokens, (B, 1 + L)
    log_p: Tensor  # of the generated tokens, (B,)
    has_ended: Tensor  # whether EOS was generated, (B,)

    def last_tokens(self, step: Tensor) -> Tensor:
        return self.tokens.index_select(1, step - 1)

    def advance(self, log_p: Tensor, tokens: Tensor, step: Tensor) -> None:
        best, token = log_p[:, 0, 0], tokens[:, 0, 0]  # (B,)
        self.log_p = torch.where(self.has_ended, self.log_p, self.log_p + best)
        self.tokens.index_copy_(1, step, token.masked_fill(self.has_ended, PAD)[:, None])
        self.has_ended = self.has_ended | (token == EOS)

    def is_done(self) -> Tensor:
        return self.has_ended

    def hypotheses(self) -> list[list[Hypothesis]]:
        return [
            [Hypothesis(tokens[1 : tokens.index(EOS)], score=log_p, log_p=log_p)]
            for tokens, log_p in zip(self.tokens.tolist(), self.log_p.tolist(), strict=True)
        ]
