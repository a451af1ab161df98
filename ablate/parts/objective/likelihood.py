"""Objectives that are the likelihood of the target, or a function of it.

N target tokens, V vocabulary size. Losses are sums over tokens, in nats.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ablate.parts.embedding import MASKED_LOGIT
from ablate.parts.objective.contract import Epsilon, Objective
from ablate.parts.objective.cross_entropy import smoothed_cross_entropy, sum_over_tokens
from ablate.parts.precision import at_least_float32
from ablate.registry import register

Power = Annotated[float, Field(gt=0.0, le=1.0)]

_MAX_LOG_P = -1e-12


@register(
    "cross_entropy",
    formula="-log p(target)",
    source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.2",
)
class CrossEntropy(Objective):
    """The negative log-likelihood."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return smoothed_cross_entropy(logits, targets, self.pad, 0.0)


@register(
    "label_smoothing",
    formula="-(1 - epsilon) log p(target) - epsilon mean_v log p(v)",
    source="Szegedy et al. 2016, arXiv:1512.00567, sec. 7",
)
class LabelSmoothing(Objective):
    """Cross-entropy with a target distribution in which other tokens share epsilon.

    Four forms are published under one name. They differ in the tokens among which epsilon is
    divided, and therefore in the value of the loss and slightly in its gradient.

    Args:
        epsilon: the probability that is divided.
        form: ``uniform``: among all V tokens, the target included (Szegedy et al.;
            torch.nn.CrossEntropyLoss; fairseq to 2020). ``others``: among the V - 1 others
            (tensor2tensor, which also subtracts the entropy of the target, and therefore the
            experiments of Vaswani et al.; fairseq since 2020).
            ``annotated``: among the V - 2 others that are not padding, with the entropy of the
            target subtracted (a Kullback-Leibler divergence), as in The Annotated Transformer.
            ``unmasked``: among those, the target included, that the embedding does not mask
            (mask_unwritten), as in the code of Nguyen & Salazar 2019.
    """

    def __init__(
        self,
        pad: int,
        *,
        epsilon: Epsilon = 0.1,
        form: Literal["uniform", "others", "annotated", "unmasked"] = "uniform",
    ) -> None:
        super().__init__(pad)
        self.epsilon = epsilon
        self.form = form
        if epsilon:
            self.smoothing = "unmasked" if form == "unmasked" else "all"

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.form == "uniform":
            return smoothed_cross_entropy(logits, targets, self.pad, self.epsilon)
        log_p = at_least_float32(logits).log_softmax(dim=-1)  # (N, V)
        target = log_p.gather(1, targets[:, None])[:, 0]  # (N,)
        if self.form == "unmasked":
            is_masked = logits < MASKED_LOGIT / 2
            mean = log_p.masked_fill(is_masked, 0.0).sum(dim=-1) / (~is_masked).sum(dim=-1)
            loss = -(1 - self.epsilon) * target - self.epsilon * mean
            return sum_over_tokens(loss, targets, self.pad)
        others = log_p.sum(dim=-1) - target
        n_others = logits.size(-1) - 1
        if self.form == "annotated":
            others, n_others = others - log_p[:, self.pad], n_others - 1
        loss = -(1 - self.epsilon) * target - self.epsilon / n_others * others  # (N,)
        if self.form == "annotated":
            shares = ((1, 1 - self.epsilon), (n_others, self.epsilon / n_others))
            loss = loss + sum(n * p * math.log(p) for n, p in shares if p > 0)
        return sum_over_tokens(loss, targets, self.pad)


class TargetLoss(Objective):
    """The contract of losses that are functions of the target's probability."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = -F.cross_entropy(at_least_float32(logits), targets, reduction="none")  # (N,)
        return sum_over_tokens(self.token_loss(log_p), targets, self.pad)

    @abstractmethod
    def token_loss(self, log_p: Tensor) -> Tensor:
        """Return the loss of each token, (N,), for the logarithm of its probability, (N,)."""


@register(
    "focal",
    formula="-(1 - p)^gamma log p, p = p(target)",
    source="Lin et al. 2017, arXiv:1708.02002, eq. 4, for many classes and without alpha",
)
class Focal(TargetLoss):
    """Cross-entropy with a smaller weight for targets that are already likely.

    Args:
        gamma: 0 is cross-entropy; 2 in the paper.
    """

    def __init__(self, pad: int, *, gamma: NonNegativeFloat = 2.0) -> None:
        super().__init__(pad)
        self.gamma = gamma

    def token_loss(self, log_p: Tensor) -> Tensor:
        complement = -torch.expm1(log_p.clamp(max=_MAX_LOG_P))  # 0 would have no gradient
        return -(complement**self.gamma) * log_p


@register(
    "poly1",
    formula="-log p + weight (1 - p), p = p(target)",
    source="Leng et al. 2022, arXiv:2204.12511, eq. 6 (Poly-1 cross-entropy)",
)
class Poly1(TargetLoss):
    """Cross-entropy with another coefficient of the first term of its series in 1 - p.

    Args:
        weight: added to that coefficient, which is 1 in cross-entropy.
    """

    def __init__(self, pad: int, *, weight: float = 1.0) -> None:
        super().__init__(pad)
        self.weight = weight

    def token_loss(self, log_p: Tensor) -> Tensor:
        return -log_p - self.weight * torch.expm1(log_p)


@register(
    "generalised_cross_entropy",
    formula="(1 - p^q) / q, p = p(target)",
    source="Zhang & Sabuncu 2018, arXiv:1805.07836, eq. 6",
)
class GeneralisedCrossEntropy(TargetLoss):
    """Between cross-entropy and 1 - p, which is less sensitive to wrong targets.

    Args:
        q: near 0 it is cross-entropy, and at 1 it is 1 - p; 0.7 in the paper.
    """

    def __init__(self, pad: int, *, q: Power = 0.7) -> None:
        super().__init__(pad)
        self.q = q

    def token_loss(self, log_p: Tensor) -> Tensor:
        return -torch.expm1(self.q * log_p) / self.q
