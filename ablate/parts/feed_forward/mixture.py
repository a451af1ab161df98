"""Mixtures of experts.

B batch, T tokens, D d_model, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import AtLeastTwo, Dims
from ablate.parts.feed_forward.contract import AuxLosses, FeedForward
from ablate.parts.feed_forward.dense import Relu
from ablate.registry import register


@register(
    "mixture_of_experts",
    formula="sum of p_e relu_e(x) over the top_k e, p = softmax(x R); p / sum p where top_k > 1",
    source="Fedus et al. 2021, arXiv:2101.03961, eq. 1 to 6; Shazeer et al. 2017, arXiv:1701.06538",
)
class MixtureOfExperts(FeedForward):
    """A router selects a few of many `relu` feed-forwards for each token.

    With one expert per token its gate is the router's probability, as in Switch; otherwise the
    router would get no gradient. With more, the gates of the selected experts are divided by their
    sum, as in Shazeer et al.

    Differs from its papers in that all experts are computed for every token and the gates of the
    others are 0: the result is the same and no token is dropped for lack of capacity, but the cost
    is that of all experts. The router has neither noise nor jitter, and computes in single
    precision under bf16, too (Fedus et al., sec. 2.4, selective precision).

    In training balance * E * sum over e of (share of the selections that are e) * (mean probability
    of e), over all tokens but padding, is added to the loss; it is lowest where both are uniform.

    Args:
        dims: gives the width D.
        dropout: of the hidden layers.
        d_ff: hidden width of each expert; 4 * d_model unless given, the paper's ratio.
        bias: whether the layers of the experts have one; the router has none.
        n_experts: E; 4, the smallest number of Shazeer et al., because all are computed.
        top_k: experts per token; 1 in Switch, from 2 to 4 elsewhere.
        balance: weight of the load-balancing loss.

    Raises:
        ValueError: if top_k is all experts, so that nothing is selected or balanced.
    """

    batch_dependence = "adds a loss that is of the whole batch"

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        dropout: float,
        *,
        d_ff: PositiveInt | None = None,
        bias: bool = True,
        n_experts: AtLeastTwo = 4,
        top_k: PositiveInt = 1,
        balance: NonNegativeFloat = 0.01,
    ) -> None:
        if top_k >= n_experts:
            raise ValueError(
                f"top_k ({top_k}) of {n_experts} experts leaves nothing to choose; "
                "give a smaller top_k or a larger n_experts"
            )
        super().__init__(dims, dropout, width=d_ff or 4 * dims.d_model)
        self.router = nn.Linear(dims.d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(
            Relu(dims, dropout, d_ff=self.width, bias=bias) for _ in range(n_experts)
        )
        self.top_k = top_k
        self.balance = balance

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        p = self._probabilities(x)
        selected = torch.zeros_like(p).scatter(-1, p.topk(self.top_k).indices, 1.0)
        gates = self._gates(p, selected)
        if self.training and aux_losses is not None:
            imbalance = self._imbalance(p, selected, aux_losses.is_token)
            aux_losses.losses.append(self.balance * imbalance)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)  # (B, T, D, E)
        return (outputs * gates[:, :, None]).sum(dim=-1)

    def normalise_hidden(self, norm: Callable[[int], nn.Module]) -> None:
        for expert in self._experts():
            expert.normalise_hidden(norm)

    def output_layers(self) -> Sequence[nn.Linear]:
        return [layer for expert in self._experts() for layer in expert.output_layers()]

    def weights(self) -> Iterator[Tensor]:
        """Yield the matrices of the experts; the router only selects among them."""
        for expert in self._experts():
            yield from expert.weights()

    def _probabilities(self, x: Tensor) -> Tensor:
        """Return the router's probabilities (B, T, E), in single precision or better."""
        device = "cpu" if x.is_meta else x.device.type  # which has no autocast
        with torch.autocast(device, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            return self.router(wide).softmax(dim=-1)

    def _gates(self, p: Tensor, selected: Tensor) -> Tensor:
        """Return the factors of all experts (B, T, E); the arguments are as in `_imbalance`."""
        gates = p * selected
        return gates / gates.sum(dim=-1, keepdim=True) if self.top_k > 1 else gates

    def _experts(self) -> Iterator[FeedForward]:
        return (cast(FeedForward, expert) for expert in self.experts)

    def _imbalance(self, p: Tensor, selected: Tensor, is_token: Tensor) -> Tensor:
        """Return how unbalanced the selection is, (): from 1, where it is uniform, to E.

        Args:
            p: probabilities, (B, T, E).
            selected: 1 where an expert was selected and 0 elsewhere, (B, T, E).
            is_token: True where there is a token, (B, T).
        """
        n_tokens = is_token.sum().clamp(min=1)
        load = (selected * is_token[:, :, None]).sum(dim=(0, 1)) / (n_tokens * self.top_k)
        mean_p = (p * is_token[:, :, None]).sum(dim=(0, 1)) / n_tokens
        return len(self.experts) * (load * mean_p).sum()


@register(
    "shared_experts",
    formula="sum of n_shared relu_s(x) + sum of p_e relu_e(x) over the top_k e, p = softmax(x R)",
    source="Dai et al. 2024, arXiv:2401.06066, sec. 3.2, eq. 9 to 14 (DeepSeekMoE)",
)
class SharedExperts(MixtureOfExperts):
    """A mixture beside experts that every token goes through.

    The gates of selected experts are the router's probabilities, not divided by their sum. The rest
    is as in `mixture_of_experts`, the balance loss included.

    Args:
        dims: gives the width D.
        dropout: of the hidden layers.
        d_ff: hidden width of each expert; 4 * d_model unless given; the paper's are narrower.
        bias: whether the layers of the experts have one; the router has none.
        n_experts: E, among which the router selects.
        top_k: experts per token, beside the shared ones.
        n_shared: experts for every token.
        balance: weight of the load-balancing loss.

    Raises:
        ValueError: if top_k is all experts, so that nothing is selected or balanced.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        dropout: float,
        *,
        d_ff: PositiveInt | None = None,
        bias: bool = True,
        n_experts: AtLeastTwo = 4,
        top_k: PositiveInt = 2,
        n_shared: PositiveInt = 1,
        balance: NonNegativeFloat = 0.01,
    ) -> None:
        super().__init__(
            dims, dropout, d_ff=d_ff, bias=bias, n_experts=n_experts, top_k=top_k, balance=balance
        )
        self.shared = nn.ModuleList(
            Relu(dims, dropout, d_ff=self.width, bias=bias) for _ in range(n_shared)
        )

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        routed = super().forward(x, aux_losses)
        return torch.stack([routed, *(expert(x) for expert in self.shared)]).sum(dim=0)

    def _gates(self, p: Tensor, selected: Tensor) -> Tensor:
        return p * selected

    def _experts(self) -> Iterator[FeedForward]:
        yield from super()._experts()
        yield from (cast(FeedForward, expert) for expert in self.shared)
