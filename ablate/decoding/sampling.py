"""Sampling, and minimum Bayes risk: the sample that is most similar to the others.

B sentences, K samples of each, C candidates, L most target tokens, V target vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from ablate.data.tokenizer import PAD
from ablate.decoding.search import Search
from ablate.decoding.search_state import Hypothesis, SearchState, TokenState, beginning
from ablate.parts.dims import AtLeastTwo
from ablate.registry import register

Probability = Annotated[float, Field(gt=0.0, le=1.0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

_ALL = 2**31  # candidates, likeliest first: more than any vocabulary has
_LONGEST_NGRAM = 4


class Sampler(Search):
    """The contract of searches that draw tokens from the model's probabilities.

    Random numbers are a function of the seed, the ids of the source, the number of the sample and
    that of the token, so that translations do not depend on the batch.

    Args:
        n_samples: samples of each sentence.
        temperature: divisor of the logits.
        top_k: how many of the likeliest tokens may be drawn; None: all.
        top_p: of these, the smallest set of likeliest tokens with this probability may be drawn.
        seed: of the random numbers, which also depend on the source.
    """

    def __init__(
        self,
        max_extra: int,
        n_samples: int,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float,
        seed: int,
    ) -> None:
        n_candidates = _ALL if top_k is None and top_p < 1 else top_k
        super().__init__(max_extra, n_beams=n_samples, n_candidates=n_candidates)
        self.temperature = temperature
        self.top_p = top_p
        self.seed = seed

    def initial_state(self, src: Tensor, max_lens: Tensor) -> SearchState:
        return _SampleState(
            *beginning(self.n_beams, max_lens), sampler=self, keys=_keys(src, self.seed)
        )

    def rank(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Return the samples of one sentence, best first."""
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


@dataclass
class _SampleState(TokenState):
    sampler: Sampler
    keys: Tensor  # of the random numbers of each sentence, (B,)

    def advance(self, log_p: Tensor, tokens: Tensor, step: Tensor) -> None:
        scaled = log_p.double() / self.sampler.temperature
        if self.sampler.top_p < 1:
            p = scaled.softmax(dim=-1)  # sorted
            is_outside = p.cumsum(dim=-1) - p >= self.sampler.top_p  # of the nucleus
            scaled = scaled.masked_fill(is_outside, -torch.inf)
        gumbel = self._uniform(tokens, step).log_().neg_().log_().neg_()
        index = (scaled + gumbel).argmax(dim=-1, keepdim=True)
        self.append(tokens.gather(-1, index)[..., 0], log_p.gather(-1, index)[..., 0], step)

    def hypotheses(self) -> list[list[Hypothesis]]:
        return [self.sampler.rank(samples) for samples in super().hypotheses()]

    def _uniform(self, tokens: Tensor, step: Tensor) -> Tensor:
        """Return a number between 0 and 1 for each of ``tokens`` (B, K, C) as token ``step``."""
        sample = torch.arange(tokens.size(1), device=tokens.device)[:, None]
        state = _splitmix64(self.keys[:, None, None] + _splitmix64(step + (sample << 32)))
        bits = (_splitmix64(state + tokens) >> 11) & (2**53 - 1)
        return (bits.double() + 0.5) * 2.0**-53


def _keys(src: Tensor, seed: int) -> Tensor:
    """Return a hash of each source's ids (B, S) and the seed, (B,)."""
    index = torch.arange(1, src.size(1) + 1, device=src.device)
    return _splitmix64((_splitmix64(src + (index << 32)) * (src != PAD)).sum(dim=1) + seed)


def _splitmix64(x: Tensor) -> Tensor:
    """Mix the bits of 64-bit integers, as SplitMix64 does (Steele et al. 2014, OOPSLA, fig. 15)."""
    x = x - 7046029254386353131
    x ^= (x >> 30) & (2**34 - 1)
    x *= -4658895280553007687
    x ^= (x >> 27) & (2**37 - 1)
    x *= -7723592293110705685
    x ^= (x >> 31) & (2**33 - 1)
    return x


@register(
    "sample",
    source="Graves 2013, arXiv:1308.0850, sec. 2; top_k: Fan et al. 2018, arXiv:1805.04833, sec. "
    "5.4; top_p: Holtzman et al. 2020, arXiv:1904.09751, sec. 3.1",
)
class Sample(Sampler):
    """Draw every token from the model's probabilities; the score is the log-probability.

    Args:
        temperature: divisor of the logits; below 1 likely tokens become likelier.
        top_p: of these, the smallest set of likeliest tokens with this probability may be drawn
            (nucleus sampling).
    """

    def __init__(
        self,
        *,
        temperature: PositiveFloat = 1.0,
        top_k: PositiveInt | None = None,
        top_p: Probability = 1.0,
        seed: Seed = 1,
        max_extra: NonNegativeInt = 50,
    ) -> None:
        super().__init__(
            max_extra, n_samples=1, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
        )


@register(
    "minimum_bayes_risk",
    source="Kumar & Byrne 2004, NAACL, sec. 2; over samples: Eikema & Aziz 2020, arXiv:2005.10283, "
    "sec. 6",
)
class MinimumBayesRisk(Sampler):
    """Draw samples and take the one with the largest expected utility under all of them.

    The utility of a sample, given another, is the mean over n = 1 to 4 of the F1 of their n-grams
    of tokens, 2 matches / (n-grams of both); an n that neither has is left out. The score is the
    mean utility given all samples.
    """

    def __init__(
        self,
        *,
        n_samples: AtLeastTwo = 16,
        temperature: PositiveFloat = 1.0,
        top_k: PositiveInt | None = None,
        top_p: Probability = 1.0,
        seed: Seed = 1,
        max_extra: NonNegativeInt = 50,
    ) -> None:
        super().__init__(
            max_extra, n_samples, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
        )

    def rank(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        counts = [ngrams(hypothesis.tokens) for hypothesis in hypotheses]
        scores = [sum(_ngram_f1(own, other) for other in counts) / len(counts) for own in counts]
        scored = [
            Hypothesis(hypothesis.tokens, score, hypothesis.log_p)
            for hypothesis, score in zip(hypotheses, scores, strict=True)
        ]
        return super().rank(scored)[:1]


Ngrams = list[Counter[tuple[int, ...]]]
"""The counts of n-grams, for n from 1."""


def ngrams(tokens: Sequence[int]) -> Ngrams:
    """Count the n-grams of some tokens, for n = 1 to 4."""
    return [
        Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
        for n in range(1, _LONGEST_NGRAM + 1)
    ]


def _ngram_f1(one: Ngrams, other: Ngrams) -> float:
    """Return the mean F1 of n-grams, 1 of two empty samples."""
    values = [
        2 * (a & b).total() / (a.total() + b.total())
        for a, b in zip(one, other, strict=True)
        if a or b
    ]
    return sum(values) / len(values) if values else 1.0
