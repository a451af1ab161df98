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

from ablate.cuda_graphs import usual_kernels
from ablate.parts.embedding import MASKED_LOGIT
from ablate.registry import Part, register

Epsilon = Annotated[float, Field(ge=0.0, lt=1.0)]
Power = Annotated[float, Field(gt=0.0, le=1.0)]

_MOST_LOG_P = -1e-12


class Objective(Part, slot="objective"):
    """The contract: logits and targets in, the sum of the tokens' losses out.

    Args:
        pad: the id of padding, whose loss is 0.

    Attributes:
        n_passes: how many times each batch goes through the model, with independent dropout.
    """

    n_passes = 1

    def __init__(self, pad: int) -> None:
        self.pad = pad

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, (), of ``logits`` (N, V), summed over ``targets`` (N,) but padding.

        With several passes the N rows are those of all passes, one pass after the other, and the
        loss is the mean over passes.
        """


@register(
    "cross_entropy",
    formula="-log p(target)",
    source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.2",
)
class CrossEntropy(Objective):
    """The negative log-likelihood."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return _smoothed_cross_entropy(logits, targets, self.pad, 0.0)


@register(
    "label_smoothing",
    formula="-(1 - epsilon) log p(target) - epsilon mean_v log p(v)",
    source="Szegedy et al. 2016, arXiv:1512.00567, sec. 7",
)
class LabelSmoothing(Objective):
    """Cross-entropy with a target distribution that gives epsilon to other tokens.

    Four forms are published under one name. They differ in the tokens among which epsilon is
    divided, and so in the value of the loss and, a little, in its gradient.

    Args:
        pad: the id of padding.
        epsilon: the probability that is divided.
        form: ``uniform``: among all V tokens, the target included (Szegedy et al.;
            torch.nn.CrossEntropyLoss; fairseq to 2020). ``others``: among the V - 1 others, as in
            tensor2tensor, and so the paper's experiments, and fairseq since. ``annotated``: among
            the V - 2 others that are not padding, with the entropy of the target subtracted (a
            Kullback-Leibler divergence), as in The Annotated Transformer. ``unmasked``: among
            those, the target included, that the embedding does not mask (mask_unwritten), as in the
            code of Nguyen & Salazar 2019.
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

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.form == "uniform":
            return _smoothed_cross_entropy(logits, targets, self.pad, self.epsilon)
        log_p = _at_least_float32(logits).log_softmax(dim=-1)  # (N, V)
        target = log_p.gather(1, targets[:, None])[:, 0]  # (N,)
        if self.form == "unmasked":
            is_masked = logits < MASKED_LOGIT / 2
            mean = log_p.masked_fill(is_masked, 0.0).sum(dim=-1) / (~is_masked).sum(dim=-1)
            loss = -(1 - self.epsilon) * target - self.epsilon * mean
            return _sum_over_tokens(loss, targets, self.pad)
        others = log_p.sum(dim=-1) - target
        n_others = logits.size(-1) - 1
        if self.form == "annotated":
            others, n_others = others - log_p[:, self.pad], n_others - 1
        loss = -(1 - self.epsilon) * target - self.epsilon / n_others * others  # (N,)
        if self.form == "annotated":
            loss = loss - self._entropy(n_others)
        return _sum_over_tokens(loss, targets, self.pad)

    def _entropy(self, n_others: int) -> float:
        target, other = 1 - self.epsilon, self.epsilon / n_others
        return -sum(n * p * math.log(p) for n, p in ((1, target), (n_others, other)) if p > 0)


@register(
    "r_drop",
    formula="(L1 + L2) / 2 + alpha / 4 (KL(p1 || p2) + KL(p2 || p1)), p1, p2: two dropout masks",
    source="Liang et al. 2021, arXiv:2106.14448, eq. 4",
)
class RDrop(Objective):
    """Penalise the difference of two passes of a batch with independent dropout.

    It is half of the paper's equation, which adds the losses of both passes, so that with alpha 0
    it is label smoothing at the same learning rate. A step takes two forward and backward passes.

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
        logits = _at_least_float32(logits)
        log_p1, log_p2 = logits.log_softmax(dim=-1).chunk(2)  # (N / 2, V)
        divergence = ((log_p1.exp() - log_p2.exp()) * (log_p1 - log_p2)).sum(dim=-1)  # (N / 2,)
        penalty = _sum_over_tokens(divergence, targets[: log_p1.size(0)], self.pad)
        cross_entropy = _smoothed_cross_entropy(logits, targets, self.pad, self.epsilon)
        return cross_entropy / 2 + self.alpha / 4 * penalty


@register(
    "z_loss",
    formula="L + weight log^2 Z, Z = sum_v exp(logit_v)",
    source="Chowdhery et al. 2022, arXiv:2204.02311, sec. 5",
)
class ZLoss(Objective):
    """Keep the softmax's normaliser Z near 1, so that the logits do not drift.

    Args:
        pad: the id of padding.
        weight: of the squared logarithm of Z.
        epsilon: of `label_smoothing` with form uniform, in L; none in the paper.
    """

    def __init__(
        self, pad: int, *, weight: NonNegativeFloat = 1e-4, epsilon: Epsilon = 0.0
    ) -> None:
        super().__init__(pad)
        self.weight = weight
        self.epsilon = epsilon

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _at_least_float32(logits)
        log_z = logits.logsumexp(dim=-1)  # (N,)
        penalty = _sum_over_tokens(log_z.square(), targets, self.pad)
        cross_entropy = _smoothed_cross_entropy(logits, targets, self.pad, self.epsilon)
        return cross_entropy + self.weight * penalty


@register(
    "confidence_penalty",
    formula="L - beta H(p), H(p) = -sum_v p(v) log p(v)",
    source="Pereyra et al. 2017, arXiv:1701.06548, sec. 3",
)
class ConfidencePenalty(Objective):
    """Reward the entropy of the prediction.

    Args:
        pad: the id of padding.
        beta: weight of the entropy, in nats; the paper tunes it for every task, and the default is
            a small one.
        epsilon: of `label_smoothing` with form uniform, in L; the paper uses one or the other.
    """

    def __init__(self, pad: int, *, beta: NonNegativeFloat = 0.1, epsilon: Epsilon = 0.0) -> None:
        super().__init__(pad)
        self.beta = beta
        self.epsilon = epsilon

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _at_least_float32(logits)
        log_p = logits.log_softmax(dim=-1)  # (N, V)
        entropy = _sum_over_tokens(-(log_p.exp() * log_p).sum(dim=-1), targets, self.pad)
        cross_entropy = _smoothed_cross_entropy(logits, targets, self.pad, self.epsilon)
        return cross_entropy - self.beta * entropy


class OfTarget(Objective):
    """The contract of losses that are functions of the target's probability."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = -F.cross_entropy(_at_least_float32(logits), targets, reduction="none")  # (N,)
        return _sum_over_tokens(self.of_target(log_p), targets, self.pad)

    @abstractmethod
    def of_target(self, log_p: Tensor) -> Tensor:
        """Return the loss of each token, (N,), for the logarithm of its probability, (N,)."""


@register(
    "focal",
    formula="-(1 - p)^gamma log p, p = p(target)",
    source="Lin et al. 2017, arXiv:1708.02002, eq. 4, for many classes and without alpha",
)
class Focal(OfTarget):
    """Cross-entropy that counts less where the target is likely already.

    Args:
        pad: the id of padding.
        gamma: 0 is cross-entropy; 2 in the paper.
    """

    def __init__(self, pad: int, *, gamma: NonNegativeFloat = 2.0) -> None:
        super().__init__(pad)
        self.gamma = gamma

    def of_target(self, log_p: Tensor) -> Tensor:
        unlikely = -torch.expm1(log_p.clamp(max=_MOST_LOG_P))  # so that its power has a slope
        return -(unlikely**self.gamma) * log_p


@register(
    "poly1",
    formula="-log p + weight (1 - p), p = p(target)",
    source="Leng et al. 2022, arXiv:2204.12511, eq. 6 (Poly-1 cross-entropy)",
)
class Poly1(OfTarget):
    """Cross-entropy with another coefficient of the first term of its series in 1 - p.

    Args:
        pad: the id of padding.
        weight: what is added to that coefficient, which is 1; 0 is cross-entropy.
    """

    def __init__(self, pad: int, *, weight: float = 1.0) -> None:
        super().__init__(pad)
        self.weight = weight

    def of_target(self, log_p: Tensor) -> Tensor:
        return -log_p - self.weight * torch.expm1(log_p)


@register(
    "generalised_cross_entropy",
    formula="(1 - p^q) / q, p = p(target)",
    source="Zhang & Sabuncu 2018, arXiv:1805.07836, eq. 6",
)
class GeneralisedCrossEntropy(OfTarget):
    """Between cross-entropy and 1 - p, which wrong targets do less harm to.

    Args:
        pad: the id of padding.
        q: near 0 it is cross-entropy, and at 1 it is 1 - p; 0.7 in the paper.
    """

    def __init__(self, pad: int, *, q: Power = 0.7) -> None:
        super().__init__(pad)
        self.q = q

    def of_target(self, log_p: Tensor) -> Tensor:
        return -torch.expm1(self.q * log_p) / self.q


def _at_least_float32(logits: Tensor) -> Tensor:
    """Return ``logits`` in single precision or better, which sums over a vocabulary need."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _smoothed_cross_entropy(logits: Tensor, targets: Tensor, pad: int, epsilon: float) -> Tensor:
    """Return the cross-entropy, (), of ``logits`` (N, V), with smoothing of form uniform."""
    if logits.is_cpu and logits.dtype == torch.bfloat16:
        return _SmoothedCrossEntropy.apply(logits, targets, pad, epsilon)
    if logits.is_cuda:
        return _FusedCrossEntropy.apply(logits, targets, pad, epsilon)
    return F.cross_entropy(
        _at_least_float32(logits),
        targets,
        reduction="sum",
        ignore_index=pad,
        label_smoothing=epsilon,
    )


class _SmoothedCrossEntropy(torch.autograd.Function):
    """`torch.nn.functional.cross_entropy` with fewer passes over the logits, for bf16 on a CPU.

    PyTorch's own computes two dense gradients, one of the target's term and one of the smoothing's,
    and adds them. This one turns the softmax into the gradient in place.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, targets: Tensor, pad: int, epsilon: float
    ) -> Tensor:
        scores, index = _at_least_float32(logits), targets[:, None]
        p = scores.softmax(dim=-1)  # (N, V)
        log_z = scores.amax(dim=-1, keepdim=True) - p.amax(dim=-1, keepdim=True).log()
        smoothing = epsilon * scores.mean(dim=-1, keepdim=True)
        loss = log_z - (1 - epsilon) * scores.gather(1, index) - smoothing  # (N, 1)
        ctx.save_for_backward(p, index)
        ctx.pad, ctx.epsilon, ctx.dtype = pad, epsilon, logits.dtype  # type: ignore[attr-defined]
        return loss.masked_fill(index == pad, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        p, index = ctx.saved_tensors
        p.sub_(ctx.epsilon / p.size(1))
        p.scatter_add_(1, index, p.new_full(index.shape, ctx.epsilon - 1))
        return p.mul_(gradient * (index != ctx.pad)).to(ctx.dtype), None, None, None


class _FusedCrossEntropy(torch.autograd.Function):
    """`torch.nn.functional.cross_entropy` with fewer passes over the logits, for a GPU.

    From logits in bf16, PyTorch's own reads and writes 48 bytes of memory for each: it computes two
    dense gradients, one of the target's term and one of the smoothing's, adds them, and sends the
    sum back through the softmax. This one takes 32: the softmax becomes the gradient at once, in
    the precision of the logits, and the target's place is written afterwards.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, targets: Tensor, pad: int, epsilon: float
    ) -> Tensor:
        log_p, index = _at_least_float32(logits).log_softmax(dim=-1), targets[:, None]
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
        of_target = (p.gather(1, index) + (ctx.epsilon - 1 - share)) * scale
        of_all = torch.empty_like(p, dtype=ctx.dtype)
        torch.addcmul(-share * scale, p, scale, out=of_all)
        with usual_kernels():  # each row has one target
            of_all.scatter_(1, index, of_target.to(ctx.dtype))
        return of_all, None, None, None


def _sum_over_tokens(values: Tensor, targets: Tensor, pad: int) -> Tensor:
    """Return the sum, (), of ``values`` (N,) where ``targets`` (N,) is a token."""
    return values.masked_fill(targets == pad, 0.0).sum()
