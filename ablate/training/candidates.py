"""Logits a few rows at a time; translations that a model samples in a step, and their costs.

B sentences, C candidates of each: the reference first, then samples. S source tokens, T target
tokens of the longest candidate, N target tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding.sampling import Sampler, ngrams
from ablate.model import Transformer
from ablate.parts.dims import at_least_float32
from ablate.parts.objective.risk import MinimumRisk


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context of a forward pass in ``precision``, ``fp32`` or ``bf16``."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def logits_of_chunks(
    model: Transformer, hidden: Tensor, targets: Tensor, precision: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Split ``hidden`` (N, D) and ``targets`` (N,); yield the logits (n, V) and targets (n,).

    The logits of all tokens would be the largest tensor of a step by far.
    """
    n_rows = model.embedding.rows_at_once(hidden.device)
    for chunk, chunk_targets in zip(hidden.split(n_rows), targets.split(n_rows), strict=True):
        with autocast(hidden.device, precision):
            logits = model.embedding.logits(chunk)
        yield logits, chunk_targets


@dataclass(frozen=True)
class Candidates:
    """The candidates of a batch, sentence by sentence."""

    objective: MinimumRisk
    tgt_out: Tensor  # their tokens and EOS, (B C, T)
    costs: Tensor  # 1 - BLEU of each, (B, C)
    is_distinct: Tensor  # from all earlier candidates of its sentence, (B, C)

    @classmethod
    def of(
        cls,
        objective: MinimumRisk,
        sentences: Sequence[Sequence[Sequence[int]]],
        device: torch.device,
    ) -> Candidates:
        """Score the candidates of each sentence, ids without EOS, by the first, the reference."""
        rows = [[*ids, EOS] for candidates in sentences for ids in candidates]
        costs = [[1 - sentence_bleu(ids, group[0]) for ids in group] for group in sentences]
        is_distinct = [
            [list(ids) not in map(list, group[:i]) for i, ids in enumerate(group)]
            for group in sentences
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
        """The input of the decoder, (B C, T)."""
        shifted = self.tgt_out.roll(1, dims=1).masked_fill(self.tgt_out == PAD, PAD)
        shifted[:, 0] = BOS
        return shifted

    def loss_and_weights(
        self, model: Transformer, hidden: Tensor, precision: str
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, (), and each token's weight in its gradient, (B C, T, 1).

        ``hidden`` are the last hidden states of the candidates, (B C T, D).
        """
        log_p = -_cross_entropies(model, hidden.detach(), self.tgt_out.flatten(), precision)
        log_p = log_p.view_as(self.tgt_out).sum(dim=1).view_as(self.costs)  # (B, C)
        loss, weights = self.objective.weigh(log_p, self.costs.to(log_p.dtype), self.is_distinct)
        return loss, weights.flatten()[:, None, None].expand(*self.tgt_out.shape, 1)


def draw_candidates(
    model: Transformer, objective: MinimumRisk, src: Tensor, tgt_out: Tensor, precision: str
) -> Candidates:
    """Draw translations of ``src`` (B, S) without dropout; the model's mode stays as it is."""
    sampler = Sampler(
        max_extra=objective.max_extra,
        n_samples=objective.n_samples,
        temperature=1.0,
        top_k=None,
        top_p=1.0,
        seed=int(torch.randint(2**62, (), device=src.device)),
    )
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast(src.device, precision):
            samples = sampler.search(model, src)
    finally:
        model.train(was_training)
    references = [[i for i in ids if i not in (PAD, EOS)] for ids in tgt_out.tolist()]
    sentences = [
        [reference, *(hypothesis.tokens for hypothesis in hypotheses)]
        for reference, hypotheses in zip(references, samples, strict=True)
    ]
    return Candidates.of(objective, sentences, src.device)


def sentence_bleu(tokens: Sequence[int], reference: Sequence[int]) -> float:
    """Return BLEU of one sentence, between 0 and 1; for n > 1, one is added to each count.

    Source: Lin & Och 2004, ORANGE, COLING, sec. 4 (smoothed BLEU); sacreBLEU's ``add-k`` of 1.
    """
    if not tokens:
        return 0.0
    logs = []
    counts = zip(ngrams(tokens), ngrams(reference), strict=True)
    for n, (ours, theirs) in enumerate(counts, start=1):
        n_matches = (ours & theirs).total() + (n > 1)
        if not n_matches:
            return 0.0
        logs.append(math.log(n_matches / (ours.total() + (n > 1))))
    brevity = min(0.0, 1 - len(reference) / len(tokens))
    return math.exp(brevity + sum(logs) / len(logs))


@torch.no_grad()
def _cross_entropies(model: Transformer, hidden: Tensor, targets: Tensor, precision: str) -> Tensor:
    """Return the cross-entropy of each token, (N,); that of padding is 0."""
    losses = [
        F.cross_entropy(at_least_float32(logits), labels, reduction="none", ignore_index=PAD)
        for logits, labels in logits_of_chunks(model, hidden, targets, precision)
    ]
    return torch.cat(losses)
