"""Optimizers that step along the gradient, a momentum of it, or its sign."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat

from ablate.parts.optimizer.adaptive import AdamW
from ablate.parts.optimizer.contract import Betas, Decay, MatrixOptimizer, TorchOptimizer
from ablate.registry import register


@register(
    "sgd",
    formula="v <- momentum v + g; w <- w - lr v, or with nesterov w - lr (g + momentum v)",
    source="Sutskever et al. 2013, ICML, sec. 2, as in torch.optim.SGD",
)
class Sgd(TorchOptimizer):
    """Gradient descent with momentum; weight decay, if any, is added to the gradient (L2).

    Args:
        momentum: decay of the sum of past gradients; 0.9, a common value, unless given.
        nesterov: whether the gradient is, approximately, that after the next momentum step.
        weight_decay: factor of the L2 penalty's gradient.

    Raises:
        ValueError: if nesterov is set and momentum is 0.
    """

    torch_class = torch.optim.SGD
    shard_blocker = ""

    def __init__(
        self, *, momentum: Decay = 0.9, nesterov: bool = False, weight_decay: NonNegativeFloat = 0.0
    ) -> None:
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum, but it is 0; set one, or nesterov: false")
        super().__init__(
            momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, foreach=True
        )


class LionOptimizer(torch.optim.Optimizer):
    """The optimizer of `lion`."""

    def __init__(self, groups: list[dict[str, Any]], *, betas: Betas, weight_decay: float) -> None:
        super().__init__(groups, {"betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make one step; the gradients must have been computed."""
        assert closure is None, "a closure is not supported"
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            weights = [p for p in group["params"] if p.grad is not None]
            if not weights:
                continue
            gradients = [p.grad for p in weights]
            for p in weights:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in weights]
            signs = torch._foreach_lerp(momenta, gradients, 1 - beta1)
            torch._foreach_sign_(signs)
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, signs, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - beta2)


@register(
    "lion",
    formula="w <- w - lr (sign(b1 m + (1 - b1) g) + weight_decay w); m <- b2 m + (1 - b2) g",
    source="Chen et al. 2023, arXiv:2302.06675, alg. 2",
)
class Lion(TorchOptimizer):
    """Change every weight by lr, with the sign of an interpolation of momentum and gradient.

    The paper recommends a learning rate 3 to 10 times smaller than Adam's.

    Args:
        betas: b1, the weight of the momentum in that interpolation, and b2, the momentum's decay.
        weight_decay: times the learning rate, the share of a weight that a step subtracts.
    """

    torch_class = LionOptimizer
    shard_blocker = ""

    def __init__(self, *, betas: Betas = (0.9, 0.99), weight_decay: NonNegativeFloat = 0.0) -> None:
        super().__init__(betas=betas, weight_decay=weight_decay)


@register(
    "muon",
    formula="matrices: v <- momentum v + (1 - momentum) g, w <- w - lr (c orthogonalised(v) + "
    "weight_decay w), c = 0.2 sqrt(max(rows, columns)); all others: adamw",
    source="Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, "
    "arXiv:2502.16982, alg. 1, as in torch.optim.Muon",
)
class Muon(MatrixOptimizer):
    """Steps of equal length in every direction of a weight matrix; AdamW for other parameters.

    Matrices are the weights of the linear layers in the stacks; tables, the output layer, biases
    and gains are trained by `adamw`, with the same learning rate.

    Args:
        momentum: decay of the moving mean of the gradient.
        nesterov: whether the new gradient is added once more to it (Nesterov's form).
        n_iterations: Newton-Schulz iterations of the orthogonalisation.
        adjust: c, the factor of a matrix's learning rate: with ``match_rms_adamw`` its steps have
            the size of AdamW's, so that one schedule serves both; ``original`` is Jordan's
            sqrt(max(1, rows / columns)).
        weight_decay: times the learning rate, the share of a weight that a step subtracts.
        betas: of AdamW: decay of the gradient's first and second moment.
        eps: of AdamW: added to the root of the second moment.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        *,
        momentum: Decay = 0.95,
        nesterov: bool = True,
        n_iterations: Annotated[int, Field(ge=1, lt=100)] = 5,
        adjust: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        weight_decay: NonNegativeFloat = 0.1,
        betas: Betas = (0.9, 0.98),
        eps: PositiveFloat = 1e-9,
    ) -> None:
        self.options: dict[str, Any] = {
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": n_iterations,
            "adjust_lr_fn": adjust,
            "weight_decay": weight_decay,
        }
        self.others = AdamW(betas=betas, eps=eps, weight_decay=weight_decay)

    def matrix_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Muon(groups, **self.options)
