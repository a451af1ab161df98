"""Translations that a model draws in a training step, and what each costs.

B sentences, C candidates of each: the reference first, then samples. S source tokens, T target
tokens of the longest candidate, N target tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding.sampling import Sampler
from ablate.model import Transformer
from ablate.parts.objective.risk import MinimumRisk
from ablate.parts.precision import at_least_float32

_LONGEST_NGRAM = 4


@dataclass(frozen=True)
class Candidates:
    """The candidates of a batch, those of one sentence after the other.

    Attributes:
        objective: says what they are worth.
        tgt_out: their tokens and EOS, (B C, T).
        costs: 1 - BLEU of each, (B, C).
        is_distinct: whether no candidate of the sentence before it is equal, (B, C).
    """

    objective: MinimumRisk
    tgt_out: Tensor
    costs: Tensor
    is_distinct: Tensor

    @classmethod
    def of(
        cls,
        objective: MinimumRisk,
        sentences: Sequence[Sequence[Sequence[int]]],
        device: torch.device,
    ) -> Candidates:
        """Score the candidates of each sentence, ids without EOS, by the first, the reference."""
        rows = [[*ids, EOS] for candidates in sentences for ids in candidates]
        costs = [[1 - sentence_bleu(ids, each[0]) for ids in each] for each in sentences]
        is_distinct = [
            [list(ids) not in map(list, each[:i]) for i, ids in enumerate(each)]
            for each in sentences
        ]
        tgt_out = pad_sequence(
            [torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD
        )
        return cls(
            objective,
            tgt_out.to(device),
            torch.tensor(costs, dtype=torch.float64, device=device),
            torch.tensor(is_distinct, device=device),
        )

    @property
    def tgt_in(self) -> Tensor:
        """Return the input of the decoder, (B C, T)."""
        shifted = self.tgt_out.roll(1, dims=1).masked_fill(self.tgt_out == PAD, PAD)
        shifted[:, 0] = BOS
        return shifted

    def weighted(self, model: Transformer, hidden: Tensor, precision: str) -> tuple[Tensor, Tensor]:
        """Return the loss, and the weight of every token's cross-entropy in its gradient.

        Args:
            model: with the weights of the step.
            hidden: of the candidates, what their logits are made from, (B C T, D).
            precision: ``fp32`` or ``bf16``.

        Returns:
            The loss, (), and weights (B C, T, 1).
        """
        log_p = -_cross_entropies(model, hidden.detach(), self.tgt_out.flatten(), precision)
        of_candidate = log_p.view_as(self.tgt_out).sum(dim=1).view_as(self.costs)  # (B, C)
        costs = self.costs.to(of_candidate.dtype)
        loss, weights = self.objective.weigh(of_candidate, costs, self.is_distinct)
        return loss, weights.flatten()[:, None, None].expand(*self.tgt_out.shape, 1)


def draw_candidates(
    model: Transformer, objective: MinimumRisk, src: Tensor, tgt_out: Tensor, precision: str
) -> Candidates:
    """Draw translations of ``src`` (B, S) without dropout; the model's mode stays as it is.

    Args:
        model: on the device of the ids.
        objective: says how many, and how long they may become.
        src: source ids.
        tgt_out: labels, (B, T).
        precision: ``fp32`` or ``bf16``.
    """
    sampler = _Sampling(objective, int(torch.randint(2**62, (), device=src.device)))
    autocast = torch.autocast(src.device.type, torch.bfloat16, enabled=precision == "bf16")
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast:
            drawn = sampler.search(model, src)
    finally:
        model.train(was_training)
    references = [[i for i in ids if i not in (PAD, EOS)] for ids in tgt_out.tolist()]
    sentences = [
        [reference, *(hypothesis.tokens for hypothesis in samples)]
        for reference, samples in zip(references, drawn, strict=True)
    ]
    return Candidates.of(objective, sentences, src.device)


def sentence_bleu(tokens: Sequence[int], reference: Sequence[int]) -> float:
    """Return BLEU of one sentence, between 0 and 1; of n > 1 each count is one larger.

    Source: Lin & Och 2004, ORANGE, COLING, sec. 4 (smoothed BLEU); sacreBLEU's ``add-k`` of 1.
    """
    if not tokens:
        return 0.0
    logs = []
    for n in range(1, _LONGEST_NGRAM + 1):
        own, of_reference = _ngrams(tokens, n), _ngrams(reference, n)
        n_matches, n_all = (own & of_reference).total() + (n > 1), own.total() + (n > 1)
        if not n_matches:
            return 0.0
        logs.append(math.log(n_matches / n_all))
    brevity = min(0.0, 1 - len(reference) / len(tokens))
    return math.exp(brevity + sum(logs) / _LONGEST_NGRAM)


def _ngrams(tokens: Sequence[int], n: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


class _Sampling(Sampler):
    """Draws from all of the model's probabilities."""

    def __init__(self, objective: MinimumRisk, seed: int) -> None:
        super().__init__(
            max_extra=objective.max_extra,
            n_samples=objective.n_samples,
            temperature=1.0,
            top_k=None,
            top_p=1.0,
            seed=seed,
        )


@torch.no_grad()
def _cross_entropies(model: Transformer, hidden: Tensor, targets: Tensor, precision: str) -> Tensor:
    """Return the cross-entropy of each token, (N,), and 0 of padding."""
    autocast = partial(
        torch.autocast, hidden.device.type, torch.bfloat16, enabled=precision == "bf16"
    )
    n_rows = model.embedding.rows_at_once(hidden.device)
    losses = []
    for rows, ids in zip(hidden.split(n_rows), targets.split(n_rows), strict=True):
        with autocast():
            logits = model.embedding.logits(rows)
        wide = at_least_float32(logits)
        losses.append(F.cross_entropy(wide, ids, reduction="none", ignore_index=PAD))
    return torch.cat(losses)
