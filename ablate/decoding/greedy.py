"""Greedy search: always the likeliest next token."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt
from torch import Tensor

from ablate.decoding.search import Search
from ablate.decoding.search_state import SearchState, TokenState, beginning
from ablate.registry import register


@register("greedy", source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.2, beam of size 1")
class Greedy(Search):
    """Take the likeliest token at every step; the score is the log-probability."""

    def __init__(self, *, max_extra: NonNegativeInt = 50) -> None:
        super().__init__(max_extra)

    def initial_state(self, src: Tensor, max_lens: Tensor) -> SearchState:
        return _GreedyState(*beginning(self.n_beams, max_lens))


@dataclass
class _GreedyState(TokenState):
    def advance(self, log_p: Tensor, tokens: Tensor, step: Tensor) -> None:
        self.append(tokens[..., 0], log_p[..., 0], step)
