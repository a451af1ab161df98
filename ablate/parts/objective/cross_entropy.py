"""Cross-entropy, with or without smoothing, in as few passes over the logits as the device allows.

N target tokens, V vocabulary size. Losses are sums over tokens, in nats.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from ablate.cuda_graphs import usual_kernels
from ablate.parts.precision import at_least_float32


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
    adds them. This class turns the softmax into the gradient in place.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, targets: Tensor, pad: int, epsilon: float
    ) -> Tensor:
        scores, index = at_least_float32(logits), targets[:, None]
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
