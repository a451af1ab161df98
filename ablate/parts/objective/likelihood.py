"""Objectives that are the likelihood of the target, or a function of it.

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

from ablate.cuda_graphs import usual_kernels
from ablate.parts.dims import at_least_float32
from ablate.parts.embedding import MASKED_LOGIT
from ablate.parts.objective.contract import Epsilon, Objective
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


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, pad: int, epsilon: float) -> Tensor:
    """Return the cross-entropy, (), of ``logits`` (N, V), with smoothing of form uniform."""
    if logits.is_cpu and logits.dtype == torch.bfloat16:
        return SmoothedCrossEntropy.apply(logits, targets, pad, epsilon)
    if logits.is_cuda:
        return FusedCrossEntropy.apply(logits, targets, pad, epsilon)
    return F.cross_entropy(
        at_least_float32(logits),
        targets,
        reduction="sum",
        ignore_index=pad,
        label_smoothing=epsilon,
    )


def sum_over_tokens(values: Tensor, targets: Tensor, pad: int) -> Tensor:
    """Return the sum, (), of ``values`` (N,) where ``targets`` (N,) is a token."""
    return values.masked_fill(targets == pad, 0.0).sum()


class SmoothedCrossEntropy(torch.autograd.Function):
    """`torch.nn.functional.cross_entropy` with fewer passes over the logits, for bf16 on a CPU.

    PyTorch computes two dense gradients, one of the target's term and one of the smoothing's, and
    adds them. This class turns one copy of the logits in place into the exponentials of the
    softmax, and these into the gradient.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, targets: Tensor, pad: int, epsilon: float
    ) -> Tensor:
        dtype, index = torch.promote_types(logits.dtype, torch.float32), targets[:, None]
        scores = logits.to(dtype, copy=True)
        smoothing = epsilon * scores.mean(dim=-1, keepdim=True)
        target, largest = scores.gather(1, index), scores.amax(dim=-1, keepdim=True)
        exponentials = scores.sub_(largest).exp_()  # (N, V)
        z = exponentials.sum(dim=-1, keepdim=True)
        loss = largest + z.log() - (1 - epsilon) * target - smoothing  # (N, 1)
        ctx.save_for_backward(exponentials, z, index)
        ctx.pad, ctx.epsilon, ctx.dtype = pad, epsilon, logits.dtype  # type: ignore[attr-defined]
        return loss.masked_fill(index == pad, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        exponentials, z, index = ctx.saved_tensors
        scale = gradient * (index != ctx.pad)  # (N, 1)
        d_logits = exponentials.mul_(scale / z).sub_(scale * (ctx.epsilon / exponentials.size(1)))
        d_logits.scatter_add_(1, index, scale * (ctx.epsilon - 1))
        return d_logits.to(ctx.dtype), None, None, None


class FusedCrossEntropy(torch.autograd.Function):
    """`torch.nn.functional.cross_entropy` with fewer passes over the logits, for a GPU.

    For each logit in bf16, PyTorch reads and writes 48 bytes of memory: it computes two dense
    gradients, one of the target's term and one of the smoothing's, adds them, and propagates the
    sum through the softmax. This class needs 32: it computes the gradient from the softmax in one
    pass, in the precision of the logits, and overwrites the elements of the targets afterwards.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, targets: Tensor, pad: int, epsilon: float
    ) -> Tensor:
        log_p, index = at_least_float32(logits).log_softmax(dim=-1), targets[:, None]
        smoothing = epsilon * log_p.mean(dim=-1, keepdim=True)
        loss = (epsilon - 1) * log_p.gather(1, index) - smoothing  # (N, 1)
        ctx.save_for_backward(log_p, index)
        ctx.pad, ctx.epsilon, ctx.dtype = pad, epsilon, logits.dtype  # type: ignore[attr-defined]
        return loss.masked_fill(index == pad, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        log_p, index = ctx.saved_tensors
        scale, share = gradient * (index != ctx.pad), ctx.epsilon / log_p.size(1)  # (N, 1), ()
        p = log_p.exp_()  # (N, V)
        d_target = (p.gather(1, index) + (ctx.epsilon - 1 - share)) * scale
        d_logits = torch.empty_like(p, dtype=ctx.dtype)
        torch.addcmul(-share * scale, p, scale, out=d_logits)
        with usual_kernels():  # each row has one target
            d_logits.scatter_(1, index, d_target.to(ctx.dtype))
        return d_logits, None, None, None
