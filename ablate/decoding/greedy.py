"""Greedy search: always the likeliest next token."""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding.search import Hypothesis, Search, next_log_p
from ablate.model import Transformer
from ablate.registry import register


@register("greedy", source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.2, beam of size 1")
class Greedy(Search):
    """Take the likeliest token at every step; the score is the log-probability.

    Args:
        max_extra: target tokens beyond those of the source.
    """

    def __init__(self, *, max_extra: NonNegativeInt = 50) -> None:
        super().__init__(max_extra)

    def search(
        self, model: Transformer, src: Tensor, n_tokens: Tensor | None = None
    ) -> list[list[Hypothesis]]:
        limits = self.limits(model, src) if n_tokens is None else n_tokens
        length = int(limits.max())
        state = model.begin(model.encode(src), length=length)
        sentences = torch.arange(src.size(0), device=src.device)  # of the rows still going
        tokens = torch.full((src.size(0), length), PAD, device=src.device)
        log_p = torch.zeros(src.size(0), device=src.device)
        last = torch.full_like(sentences, BOS)
        for t in range(length):
            now = limits[sentences]
            step = next_log_p(
                model.step(last, state), now == t + 1, None if n_tokens is None else now > t + 1
            )
            gained, last = step.max(dim=-1)
            log_p[sentences] += gained
            tokens[sentences, t] = last
            going = (last != EOS).nonzero()[:, 0]
            if len(going) == 0:
                break
            if len(going) < len(last):
                state.select(going)
                sentences, last = sentences[going], last[going]
        return [
            [Hypothesis(row[: row.index(EOS)], p, p)]
            for row, p in zip(tokens.tolist(), log_p.tolist(), strict=True)
        ]
