"""Objectives: what training minimises.

N target tokens, V vocabulary size. Losses are sums over tokens, in nats.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from ablate.registry import Part, register

Epsilon = Annotated[float, Field(ge=0.0, lt=1.0)]


class Objective(Part, slot="objective"):
    """The contract: logits and targets in, the sum of the tokens' losses out.

    Args:
        pad: the id of padding, whose loss is 0.

    Attributes:
        n_passes: how often every batch goes through the model, each time with dropout of its own.
    """

    n_passes = 1

    def __init__(self, pad: int) -> None:
        self.pad = pad

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, (), of ``logits`` (N, V), summed over ``targets`` (N,) but padding.

        With several passes N counts all of them, one after the other, and the loss is their mean.
        """


@register(
    "cross_entropy",
    formula="-log p(target)",
    source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.2",
)
class CrossEntropy(Objective):
    """The negative log-likelihood itself."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return _smoothed(logits, targets, self.pad, 0.0)


@register(
    "label_smoothing",
    formula="-(1 - epsilon) log p(target) - epsilon mean_v log p(v)",
    source="Szegedy et al. 2016, arXiv:1512.00567, sec. 7",
)
class LabelSmoothing(Objective):
    """Cross-entropy against a target that keeps 1 - epsilon and spreads epsilon.

    Three forms are published under one name. They differ in where epsilon goes, and so in the
    value of the loss and, a little, in its gradient.

    Args:
        pad: the id of padding.
        epsilon: the probability that is spread.
        form: ``uniform``: over all V tokens, the target among them (Szegedy et al.;
            torch.nn.CrossEntropyLoss; fairseq to 2020). ``others``: over the V - 1 others, as
            tensor2tensor, and so the paper's experiments, and fairseq since. ``annotated``: over
            the V - 2 others that are not padding, with the entropy of the target subtracted (a
            Kullback-Leibler divergence), as in The Annotated Transformer.
    """

    def __init__(
        self,
        pad: int,
        *,
        epsilon: Epsilon = 0.1,
        form: Literal["uniform", "others", "annotated"] = "uniform",
    ) -> None:
        super().__init__(pad)
        self.epsilon = epsilon
        self.form = form

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.form == "uniform":
            return _smoothed(logits, targets, self.pad, self.epsilon)
        log_p = _precise(logits).log_softmax(dim=-1)  # (N, V)
        own = log_p.gather(1, targets[:, None])[:, 0]  # (N,)
        others = log_p.sum(dim=-1) - own
        n_others = logits.size(-1) - 1
        if self.form == "annotated":
            others, n_others = others - log_p[:, self.pad], n_others - 1
        loss = -(1 - self.epsilon) * own - self.epsilon / n_others * others  # (N,)
        if self.form == "annotated":
            loss = loss - self._entropy(n_others)
        return _over_tokens(loss, targets, self.pad)

    def _entropy(self, n_others: int) -> float:
        own, share = 1 - self.epsilon, self.epsilon / n_others
        return -sum(n * p * math.log(p) for n, p in ((1, own), (n_others, share)) if p > 0)


@register(
    "r_drop",
    formula="(L1 + L2) / 2 + alpha / 4 (KL(p1 || p2) + KL(p2 || p1)), p1, p2: two dropout masks",
    source="Liang et al. 2021, arXiv:2106.14448, eq. 4",
)
class RDrop(Objective):
    """Two passes of one batch, each with dropout of its own, must predict alike.

    It is half of the paper's equation, which adds the losses of both passes, so that without
    alpha it is label smoothing, and the learning rate means the same. A step costs two.

    Args:
        pad: the id of padding.
        alpha: weight of the divergence between the passes; the paper's for translation.
        epsilon: of `label_smoothing` with form uniform, in L1 and L2; as in the authors' code.
    """

    n_passes = 2

    def __init__(self, pad: int, *, alpha: NonNegativeFloat = 5.0, epsilon: Epsilon = 0.1) -> None:
        super().__init__(pad)
        self.alpha = alpha
        self.epsilon = epsilon

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _precise(logits)
        one, other = logits.log_softmax(dim=-1).chunk(2)  # (N / 2, V)
        both_ways = ((one.exp() - other.exp()) * (one - other)).sum(dim=-1)  # (N / 2,)
        apart = _over_tokens(both_ways, targets[: one.size(0)], self.pad)
        likelihood = _smoothed(logits, targets, self.pad, self.epsilon)
        return likelihood / 2 + self.alpha / 4 * apart


@register(
    "z_loss",
    formula="L + weight log^2 Z, Z = sum_v exp(logit_v)",
    source="Chowdhery et al. 2022, arXiv:2204.02311, sec. 5",
)
class ZLoss(Objective):
    """Keep the softmax's normaliser near 1, so that logits do not drift away together.

    Args:
        pad: the id of padding.
        weight: of the squared logarithm of the normaliser.
        epsilon: of `label_smoothing` with form uniform, in L; none in the paper.
    """

    def __init__(
        self, pad: int, *, weight: NonNegativeFloat = 1e-4, epsilon: Epsilon = 0.0
    ) -> None:
        super().__init__(pad)
        self.weight = weight
        self.epsilon = epsilon

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _precise(logits)
        log_z = logits.logsumexp(dim=-1)  # (N,)
        drift = _over_tokens(log_z.square(), targets, self.pad)
        return _smoothed(logits, targets, self.pad, self.epsilon) + self.weight * drift


@register(
    "confidence_penalty",
    formula="L - beta H(p), H(p) = -sum_v p(v) log p(v)",
    source="Pereyra et al. 2017, arXiv:1701.06548, sec. 3",
)
class ConfidencePenalty(Objective):
    """Reward the entropy of the prediction.

    Args:
        pad: the id of padding.
        beta: weight of the entropy, in nats; the paper tunes it for every task, and this is only
            a mild one.
        epsilon: of `label_smoothing` with form uniform, in L; the paper has one or the other.
    """

    def __init__(self, pad: int, *, beta: NonNegativeFloat = 0.1, epsilon: Epsilon = 0.0) -> None:
        super().__init__(pad)
        self.beta = beta
        self.epsilon = epsilon

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _precise(logits)
        log_p = logits.log_softmax(dim=-1)  # (N, V)
        entropy = _over_tokens(-(log_p.exp() * log_p).sum(dim=-1), targets, self.pad)
        return _smoothed(logits, targets, self.pad, self.epsilon) - self.beta * entropy


def _precise(logits: Tensor) -> Tensor:
    """Return ``logits`` in single precision at least: sums over a vocabulary need it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _smoothed(logits: Tensor, targets: Tensor, pad: int, epsilon: float) -> Tensor:
    """Return the cross-entropy, (), of ``logits`` (N, V), with ``epsilon`` spread over all V."""
    if logits.is_cpu and logits.dtype == torch.bfloat16:
        return _Smoothed.apply(logits, targets, pad, epsilon)
    return F.cross_entropy(
        _precise(logits), targets, reduction="sum", ignore_index=pad, label_smoothing=epsilon
    )


class _Smoothed(torch.autograd.Function):
    """The same loss in fewer passes over the logits, for where these cost more than kernels.

    PyTorch's own makes two dense gradients, one of the target and one of what is spread, and adds
    them up. Here the softmax becomes the gradient where it lies.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, targets: Tensor, pad: int, epsilon: float
    ) -> Tensor:
        scores, own = _precise(logits), targets[:, None]
        p = scores.softmax(dim=-1)  # (N, V)
        log_z = scores.amax(dim=-1, keepdim=True) - p.amax(dim=-1, keepdim=True).log()
        spread = epsilon * scores.mean(dim=-1, keepdim=True)
        loss = log_z - (1 - epsilon) * scores.gather(1, own) - spread  # (N, 1)
        ctx.save_for_backward(p, own)
        ctx.pad, ctx.epsilon, ctx.dtype = pad, epsilon, logits.dtype  # type: ignore[attr-defined]
        return loss.masked_fill(own == pad, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        p, own = ctx.saved_tensors
        p.sub_(ctx.epsilon / p.size(1))
        p.scatter_add_(1, own, p.new_full(own.shape, ctx.epsilon - 1))
        return p.mul_(gradient * (own != ctx.pad)).to(ctx.dtype), None, None, None


def _over_tokens(values: Tensor, targets: Tensor, pad: int) -> Tensor:
    """Return the sum, (), of ``values`` (N,), where ``targets`` (N,) is a token."""
    return values.masked_fill(targets == pad, 0.0).sum()
