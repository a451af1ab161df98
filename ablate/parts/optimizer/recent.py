"""Optimizers that PyTorch lacks, or whose PyTorch version does not resume bit for bit."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from ablate.parts.optimizer.adaptive import AdamW
from ablate.parts.optimizer.contract import (
    Betas,
    Decay,
    MatrixOptimizer,
    PerParameter,
    State,
    TorchOptimizer,
    adam_moments,
    moving_mean,
)
from ablate.registry import register


class AdEMAMixOptimizer(PerParameter):
    """The optimizer of `ademamix`."""

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        m, v = adam_moments(state, g, group["betas"])
        share = min(state["step"] / group["warmup"], 1.0) if group["warmup"] else 1.0
        decay = group["beta3"]
        if share < 1.0:  # the half-life rises linearly from that of the fast mean
            first, last = math.log(max(group["betas"][0], 1e-12)), math.log(decay)
            decay = min(math.exp(first * last / ((1 - share) * last + share * first)), decay)
        slow = moving_mean(state, "slow", g, decay)
        u = (m + share * group["alpha"] * slow) / (v.sqrt() + group["eps"])
        w.sub_(group["lr"] * (u + group["weight_decay"] * w))


@register(
    "ademamix",
    formula="w <- w - lr ((m + alpha s) / (sqrt(v) + eps) + weight_decay w), s a slower mean of g",
    source="Pagliardini et al. 2024, arXiv:2409.03137, alg. 1 and sec. 3",
)
class AdEMAMix(TorchOptimizer):
    """AdamW with a second moving mean of the gradient, which remembers thousands of steps.

    Args:
        betas: decay of the fast first moment, and of the second moment.
        beta3: decay of the slow first moment, which is not corrected for its start.
        alpha: weight of the slow moment.
        warmup: steps over which alpha and beta3 rise to their values; the paper has all steps.
        eps: added to the root of the second moment.
        weight_decay: times the learning rate, the share of a weight that a step subtracts.

    Raises:
        ValueError: if beta3 is 0.
    """

    torch_class = AdEMAMixOptimizer
    shard_blocker = ""

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.999),
        beta3: Decay = 0.9999,
        alpha: NonNegativeFloat = 5.0,
        warmup: NonNegativeInt = 0,
        eps: PositiveFloat = 1e-8,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        if not beta3:
            raise ValueError("beta3 is the decay of the slow mean, and 0 keeps nothing; raise it")
        moments = {"betas": betas, "beta3": beta3, "alpha": alpha, "warmup": warmup}
        super().__init__(**moments, eps=eps, weight_decay=weight_decay)


class AdanOptimizer(PerParameter):
    """The optimizer of `adan`."""

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        b1, b2, b3 = group["betas"]
        t, change = state["step"], g - state.get("previous", g)
        m = moving_mean(state, "first", g, b1) / (1 - b1**t)
        d = moving_mean(state, "change", change, b2) / (1 - b2**t)
        n = moving_mean(state, "second", (g + b2 * change).square(), b3) / (1 - b3**t)
        state["previous"] = g.clone()
        w.sub_(group["lr"] * (m + b2 * d) / (n.sqrt() + group["eps"]))
        w.div_(1 + group["lr"] * group["weight_decay"])


@register(
    "adan",
    formula="w <- (w - lr (m + b2 d) / (sqrt(n) + eps)) / (1 + lr weight_decay); m, d, n: means of "
    "g, of its change, and of (g + b2 change)^2",
    source="Xie et al. 2022, arXiv:2208.06677, alg. 1, with the bias correction of their code",
)
class Adan(TorchOptimizer):
    """Adam with Nesterov's momentum, estimated from the change of the gradient.

    Args:
        betas: decays of the three means; 1 minus those of the paper.
        eps: added to the root of the second moment.
        weight_decay: a step divides a weight by 1 plus the product of this and the learning rate.
    """

    torch_class = AdanOptimizer
    shard_blocker = ""

    def __init__(
        self,
        *,
        betas: tuple[Decay, Decay, Decay] = (0.98, 0.92, 0.99),
        eps: PositiveFloat = 1e-8,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay)


class NAdamOptimizer(PerParameter):
    """The optimizer of `nadam`."""

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        (b1, b2), t = group["betas"], state["step"]
        now, following = (
            b1 * (1 - 0.5 * 0.96 ** (n * group["momentum_decay"])) for n in (t, t + 1)
        )
        product = state["product"] = state.get("product", 1.0) * now
        g = g + group["weight_decay"] * w
        m = moving_mean(state, "first", g, b1)
        v = moving_mean(state, "second", g.square(), b2) / (1 - b2**t)
        u = (1 - now) / (1 - product) * g + following / (1 - product * following) * m
        w.sub_(group["lr"] * u / (v.sqrt() + group["eps"]))


@register(
    "nadam",
    formula="as adam with (1 - mu_t) g / (1 - prod mu) + mu_t+1 m / (1 - prod mu mu_t+1) for m",
    source="Dozat 2016, Incorporating Nesterov Momentum into Adam, alg. 2, as in torch.optim.NAdam",
)
class NAdam(TorchOptimizer):
    """Adam with Nesterov's momentum; weight decay, if any, is added to the gradient (L2).

    The momentum mu_t rises to the first beta as 1 - 0.5 * 0.96^(t momentum_decay).

    Args:
        betas: decay of the gradient's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: factor of the L2 penalty's gradient.
        momentum_decay: how fast the momentum rises; 0.004 in the paper.
    """

    torch_class = NAdamOptimizer  # PyTorch's rounds the product of the momenta when it is restored
    shard_blocker = ""

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.98),
        eps: PositiveFloat = 1e-9,
        weight_decay: NonNegativeFloat = 0.0,
        momentum_decay: PositiveFloat = 0.004,
    ) -> None:
        super().__init__(
            betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay
        )


class LambOptimizer(PerParameter):
    """The optimizer of `lamb`."""

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        m, v = adam_moments(state, g, group["betas"])
        u = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * w
        weight_norm, update_norm = w.norm(), u.norm()
        is_positive = (weight_norm > 0) & (update_norm > 0)
        ratio = torch.where(is_positive, weight_norm / update_norm, torch.ones_like(weight_norm))
        w.sub_(group["lr"] * ratio * u)


@register(
    "lamb",
    formula="w <- w - lr |w| / |u| u, u = m / (sqrt(v) + eps) + weight_decay w, as adamw",
    source="You et al. 2020, arXiv:1904.00962, alg. 2, phi the identity",
)
class Lamb(TorchOptimizer):
    """Adam whose step of each parameter tensor has lr times the norm of that tensor.

    Where the weight or u is 0, the ratio is 1. The authors' code leaves biases and norms out of the
    ratio and of the decay; here they have both, so that what starts at 0, such as biases and the
    factors of rezero, has a first step of lr u and then grows only by a share lr of itself per
    step.

    Args:
        betas: decay of the gradient's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: factor of the weights that are added to the update, before its norm is set.
    """

    torch_class = LambOptimizer
    shard_blocker = "looks at the norms of whole weights"

    def __init__(
        self,
        *,
        betas: Betas = (0.9, 0.999),
        eps: PositiveFloat = 1e-6,
        weight_decay: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay)


class CautiousAdamWOptimizer(PerParameter):
    """The optimizer of `cautious_adamw`."""

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        m, v = adam_moments(state, g, group["betas"])
        u = m / (v.sqrt() + group["eps"])
        agrees = (u * g > 0).to(u.dtype)
        u = u * agrees / agrees.mean().clamp(min=1e-3)
        w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * u)


@register(
    "cautious_adamw",
    formula="as adamw with m / (sqrt(v) + eps) times [m g > 0] / max(mean [m g > 0], 0.001)",
    source="Liang et al. 2024, arXiv:2411.16085, alg. 1 and their code",
)
class CautiousAdamW(AdamW):
    """AdamW without the elements of a step whose sign is not that of the current gradient."""

    torch_class = CautiousAdamWOptimizer
    extra: ClassVar[dict[str, Any]] = {}
    shard_blocker = "looks at how many elements of a whole weight agree"


class SoapOptimizer(PerParameter):
    """The optimizer of the matrices in `soap`."""

    def update(self, w: Tensor, g: Tensor, state: State, group: dict[str, Any]) -> None:
        decay = group["betas"][1]
        if state["step"] == 1:  # only computes the bases
            self._update_factors(state, g, decay)
            state["bases"] = [_eigenvectors(factor) for factor in state["factors"]]
            return
        t, (left, right) = state["step"] - 1, state["bases"]
        b1, b2 = group["betas"]
        m = moving_mean(state, "first", g, b1)
        v = moving_mean(state, "second", (left.T @ g @ right).square(), b2)
        u = (left.T @ m @ right) / (v.sqrt() + group["eps"])
        rate = group["lr"] * (1 - b2**t) ** 0.5 / (1 - b1**t)
        w.sub_(rate * (left @ u @ right.T))
        w.mul_(1 - group["lr"] * group["weight_decay"])
        self._update_factors(state, g, decay)
        if t % group["every"] == 0:
            self._update_bases(state)

    @staticmethod
    def _update_factors(state: State, g: Tensor, decay: float) -> None:
        products = (g @ g.T, g.T @ g)
        old = state.get("factors") or [torch.zeros_like(product) for product in products]
        state["factors"] = [a.lerp(b, 1 - decay) for a, b in zip(old, products, strict=True)]

    @staticmethod
    def _update_bases(state: State) -> None:
        """Improve both bases by one step of power iteration, largest eigenvalues first."""
        bases = []
        for side, (factor, basis) in enumerate(zip(state["factors"], state["bases"], strict=True)):
            values = (basis * (factor @ basis)).sum(dim=0)
            order = values.argsort(descending=True, stable=True)
            state["second"] = state["second"].index_select(side, order)
            bases.append(torch.linalg.qr(factor @ basis[:, order]).Q)
        state["bases"] = bases


def _eigenvectors(factor: Tensor) -> Tensor:
    """Return the eigenvectors of a symmetric matrix as columns, largest eigenvalue first.

    Where single precision does not converge, they are computed in double, as in the authors' code.
    Of numbers that are not finite they are not finite, so that the run diverges.
    """
    if not bool(factor.isfinite().all()):
        return torch.full_like(factor, math.nan)
    try:
        vectors: Tensor = torch.linalg.eigh(factor).eigenvectors
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        vectors = torch.linalg.eigh(factor.double()).eigenvectors.to(factor.dtype)
    return vectors.flip(-1)


@register(
    "soap",
    formula="matrices: Adam of QL^T g QR, turned back; QL, QR eigenvectors of means of g g^T, "
    "g^T g; all others: adamw",
    source="Vyas et al. 2024, arXiv:2409.11321, alg. 3, and their code",
)
class Soap(MatrixOptimizer):
    """Adam in the eigenbasis of Shampoo's preconditioner.

    Matrices are the weights of the linear layers in the stacks. Tables and the output layer are
    trained by `adamw`, as are biases and gains; the authors' code rotates the short side of a
    table, and the long one too up to 10,000 rows. The first step of a matrix only computes its
    bases.

    Args:
        betas: decay of the gradient's first and second moment, the latter of the means of g g^T
            and g^T g, too.
        eps: added to the root of the second moment.
        every: steps between two improvements of the bases.
        weight_decay: times the learning rate, the share of a weight that a step subtracts.
    """

    def __init__(
        self,
        *,
        betas: Betas = (0.95, 0.95),
        eps: PositiveFloat = 1e-8,
        every: PositiveInt = 10,
        weight_decay: NonNegativeFloat = 0.01,
    ) -> None:
        self.settings = {"betas": betas, "eps": eps, "every": every, "weight_decay": weight_decay}
        self.others = AdamW(betas=betas, eps=eps, weight_decay=weight_decay)

    def matrix_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return SoapOptimizer(groups, **self.settings)
