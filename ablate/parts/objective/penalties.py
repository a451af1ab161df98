"""Objectives that add a penalty to the likelihood.

B sentences of T target tokens, N target tokens, V vocabulary size. Losses are sums, in nats.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from ablate.parts.dims import at_least_float32
from ablate.parts.objective.contract import Epsilon, Objective
from ablate.parts.objective.likelihood import smoothed_cross_entropy, sum_over_tokens
from ablate.registry import register

_MIN_COMPLEMENT = 1e-5  # of 1 - p, as in the authors' code


class _Penalised(Objective):
    """L + weight times a penalty of each token; L: `label_smoothing` with form uniform."""

    def __init__(self, pad: int, weight: float, epsilon: float) -> None:
        super().__init__(pad)
        self.weight = weight
        self.epsilon = epsilon
        self.smoothing = "all" if epsilon else "none"

    @abstractmethod
    def penalty(self, logits: Tensor, context: Tensor) -> Tensor:
        """Return the penalty of each token, (N,), of the first pass if there are several."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        context = self.context(targets[None])  # of one sentence
        rows = targets[:, None] if context is None else context[0]
        return self.loss_in_context(logits, targets, rows)

    def loss_in_context(self, logits: Tensor, targets: Tensor, context: Tensor) -> Tensor:
        logits = at_least_float32(logits)
        penalty = self.penalty(logits, context)
        total = sum_over_tokens(penalty, targets[: penalty.size(0)], self.pad)
        cross_entropy = smoothed_cross_entropy(logits, targets, self.pad, self.epsilon)
        return cross_entropy / self.n_passes + self.weight * total


@register(
    "r_drop",
    formula="(L1 + L2) / 2 + alpha / 4 (KL(p1 || p2) + KL(p2 || p1)), p1, p2: two dropout masks",
    source="Liang et al. 2021, arXiv:2106.14448, eq. 4",
)
class RDrop(_Penalised):
    """Penalise the difference of two passes of a batch with independent dropout.

    This is half of the paper's equation, which adds the losses of both passes: with alpha 0 it then
    equals label smoothing. A step takes two forward and backward passes. A layer that is dropped
    (dropout.layer) is dropped in both.

    Args:
        alpha: weight of the divergence between the passes; the paper's for translation.
        epsilon: of `label_smoothing` with form uniform, in L1 and L2; as in the authors' code.
    """

    n_passes = 2

    def __init__(self, pad: int, *, alpha: NonNegativeFloat = 5.0, epsilon: Epsilon = 0.1) -> None:
        super().__init__(pad, alpha / 4, epsilon)

    def penalty(self, logits: Tensor, context: Tensor) -> Tensor:
        log_p1, log_p2 = logits.log_softmax(dim=-1).chunk(2)  # (N / 2, V)
        return ((log_p1.exp() - log_p2.exp()) * (log_p1 - log_p2)).sum(dim=-1)  # (N / 2,)


@register(
    "z_loss",
    formula="L + weight log^2 Z, Z = sum_v exp(logit_v)",
    source="Chowdhery et al. 2022, arXiv:2204.02311, sec. 5",
)
class ZLoss(_Penalised):
    """Keep the softmax's normaliser Z near 1, so that the logits do not drift.

    Args:
        weight: of the squared logarithm of Z.
        epsilon: of `label_smoothing` with form uniform, in L; none in the paper.
    """

    def __init__(
        self, pad: int, *, weight: NonNegativeFloat = 1e-4, epsilon: Epsilon = 0.0
    ) -> None:
        super().__init__(pad, weight, epsilon)

    def penalty(self, logits: Tensor, context: Tensor) -> Tensor:
        return logits.logsumexp(dim=-1).square()  # (N,)


@register(
    "confidence_penalty",
    formula="L - beta H(p), H(p) = -sum_v p(v) log p(v)",
    source="Pereyra et al. 2017, arXiv:1701.06548, sec. 3",
)
class ConfidencePenalty(_Penalised):
    """Reward the entropy of the prediction.

    Args:
        beta: weight of the entropy, in nats; the paper tunes it for every task, and the default is
            a small one.
        epsilon: of `label_smoothing` with form uniform, in L; the paper uses one or the other.
    """

    def __init__(self, pad: int, *, beta: NonNegativeFloat = 0.1, epsilon: Epsilon = 0.0) -> None:
        super().__init__(pad, beta, epsilon)

    def penalty(self, logits: Tensor, context: Tensor) -> Tensor:
        log_p = logits.log_softmax(dim=-1)  # (N, V)
        return (log_p.exp() * log_p).sum(dim=-1)  # minus the entropy, (N,)


@register(
    "unlikelihood",
    formula="L - alpha sum_c log(1 - p(c)), c: the tokens before the target that differ from it",
    source="Welleck et al. 2019, arXiv:1908.04319, sec. 5.1, eq. 4 and 5, and their code",
)
class Unlikelihood(_Penalised):
    """Penalise the probability of earlier target tokens of the sentence, except the target itself.

    This is the token-level loss of the paper, which also has a loss of sequences. A token that
    occurred several times is penalised once.

    Args:
        alpha: weight of the penalty; 1 in the paper.
        epsilon: of `label_smoothing` with form uniform, in L; none in the paper.
    """

    def __init__(self, pad: int, *, alpha: NonNegativeFloat = 1.0, epsilon: Epsilon = 0.0) -> None:
        super().__init__(pad, alpha, epsilon)

    def context(self, targets: Tensor) -> Tensor:
        """Return the tokens that are penalised at each target, and padding elsewhere, (B, T, T)."""
        is_equal = targets[:, :, None] == targets[:, None]  # (B, T, T)
        is_before = torch.ones_like(is_equal[0]).tril(-1)  # (T, T)
        is_first = ~(is_equal & is_before).any(dim=-1)  # (B, T)
        is_penalised = is_before & ~is_equal & is_first[:, None]
        return torch.where(is_penalised, targets[:, None], self.pad)

    def penalty(self, logits: Tensor, context: Tensor) -> Tensor:
        p = logits.log_softmax(dim=-1).gather(1, context).exp()  # (N, T)
        penalties = -(1 - p).clamp(min=_MIN_COMPLEMENT).log()
        return penalties.masked_fill(context == self.pad, 0.0).sum(dim=-1)
