"""Mixtures of experts.

B batch, T tokens, D d_model, E experts, K experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, cast

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import AtLeastTwo, Dims, at_least_float32
from ablate.parts.feed_forward.contract import AuxLosses, FeedForward
from ablate.parts.feed_forward.dense import Relu
from ablate.registry import AddedOption, register


@register(
    "mixture_of_experts",
    formula="sum of p_e relu_e(x) over the top_k e, p = softmax(x R); p / sum p where top_k > 1",
    source="Fedus et al. 2021, arXiv:2101.03961, eq. 1 to 6; Shazeer et al. 2017, arXiv:1701.06538",
)
class MixtureOfExperts(FeedForward):
    """A router selects a few of many `relu` feed-forwards for each token.

    With one expert per token its gate is the router's probability, as in Switch: divided by itself,
    it would give the router no gradient. With more, the gates of the selected experts are divided
    by their sum, as in Shazeer et al.

    Differs from its papers in that all experts are computed for every token and the gates of those
    that are not selected are 0: the result is the same, but the cost is that of all experts. The
    router has neither noise nor jitter, and computes in single precision even under bf16 (Fedus et
    al., sec. 2.4, selective precision).

    In training, balance * E * sum over e of (share of the selections that are e) * (mean
    probability of e), over all tokens but padding, is added to the loss. It is balance if both are
    uniform and at most E times that; it can be somewhat lower if the experts that most tokens
    select are not those with the largest mean probability.

    Args:
        d_ff: hidden width of each expert; 4 * d_model unless given, the paper's ratio.
        bias: whether the layers of the experts have one; the router has none.
        n_experts: E; 4, the smallest number of Shazeer et al., because all are computed.
        top_k: experts per token; 1 in Switch, from 2 to 4 elsewhere.
        balance: weight of the load-balancing loss.
        capacity: how many tokens an expert accepts in training, as a multiple of its even share
            top_k tokens / E (Fedus et al., eq. 3; 1.25 there; 1 in Lepikhin et al. 2020,
            arXiv:2006.16668, whose 2 N / E for two experts does not count top_k); all unless given.
            The expert adds nothing to further tokens; if no expert accepts a token, the output for
            it is 0. Experts accept the first choices of all tokens before the second ones, each in
            the order of the batch, without padding. In evaluation no token is dropped, so that
            tokens do not depend on each other.

    Raises:
        ValueError: if top_k is all experts, so that nothing is selected or balanced.
    """

    batch_dependence = "adds a loss that is of the whole batch"
    divides_gates = True

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
        capacity: Annotated[PositiveFloat | None, AddedOption(None)] = None,
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
        self.capacity = capacity

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        p = self._probabilities(x)
        choices = self._selection_scores(p).topk(self.top_k).indices  # (B, T, K)
        selected = torch.zeros_like(p).scatter(-1, choices, 1.0)
        gates = p * selected
        if self.divides_gates and self.top_k > 1:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        if self.training and aux_losses is not None:
            self._balance(p, selected, aux_losses)
            if self.capacity is not None:
                gates = gates * self._is_accepted(choices, aux_losses.is_token, self.capacity)
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
            return self._to_probabilities(self.router(at_least_float32(x)))

    def _to_probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities (B, T, E) of the router's outputs (B, T, E)."""
        return logits.softmax(dim=-1)

    def _selection_scores(self, p: Tensor) -> Tensor:
        """Return the scores of which the largest select the experts, (B, T, E)."""
        return p

    def _balance(self, p: Tensor, selected: Tensor, aux_losses: AuxLosses) -> None:
        """Add the load-balancing loss: ``balance`` if the selection is uniform, E times at most.

        ``p`` are probabilities; ``selected`` is 1 where an expert was selected, else 0; (B, T, E).
        """
        is_token = aux_losses.is_token
        n_tokens = is_token.sum().clamp(min=1)
        load = (selected * is_token[:, :, None]).sum(dim=(0, 1)) / (n_tokens * self.top_k)
        mean_p = (p * is_token[:, :, None]).sum(dim=(0, 1)) / n_tokens
        imbalance = len(self.experts) * (load * mean_p).sum()
        aux_losses.losses.append(self.balance * imbalance)

    def _is_accepted(self, choices: Tensor, is_token: Tensor, capacity: float) -> Tensor:
        """Return whether an expert accepts a token for which it is selected, (B, T, E).

        ``choices`` (B, T, K) has the experts of each token, the best first.
        """
        n_experts = len(self.experts)
        max_tokens = (capacity * self.top_k * is_token.sum() / n_experts).ceil()
        is_chosen = choices[..., None] == torch.arange(n_experts, device=choices.device)
        is_chosen = is_chosen & is_token[:, :, None, None]  # (B, T, K, E)
        is_chosen = is_chosen.movedim(2, 0).flatten(0, 2)  # (K B T, E), in order of priority
        is_accepted = is_chosen & (is_chosen.cumsum(dim=0) <= max_tokens)
        return is_accepted.unflatten(0, (self.top_k, *is_token.shape)).any(dim=0)

    def _experts(self) -> Iterator[FeedForward]:
        return (cast(FeedForward, expert) for expert in self.experts)


@register(
    "shared_experts",
    formula="sum of n_shared relu_s(x) + sum of p_e relu_e(x) over the top_k e, p = softmax(x R)",
    source="Dai et al. 2024, arXiv:2401.06066, sec. 3.2, eq. 9 to 14 (DeepSeekMoE)",
)
class SharedExperts(MixtureOfExperts):
    """A mixture plus experts that process every token.

    The gates of selected experts are the router's probabilities, not divided by their sum. The rest
    is as in `mixture_of_experts`, including the load-balancing loss.

    Args:
        d_ff: hidden width of each expert; 4 * d_model unless given; the paper's are narrower.
        n_experts: E, among which the router selects.
        top_k: experts per token, in addition to the shared ones.
        n_shared: experts for every token.
        capacity: as in `mixture_of_experts`, of the experts that are selected.
    """

    divides_gates = False

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
        capacity: Annotated[PositiveFloat | None, AddedOption(None)] = None,
    ) -> None:
        super().__init__(
            dims,
            dropout,
            d_ff=d_ff,
            bias=bias,
            n_experts=n_experts,
            top_k=top_k,
            balance=balance,
            capacity=capacity,
        )
        self.shared = nn.ModuleList(
            Relu(dims, dropout, d_ff=self.width, bias=bias) for _ in range(n_shared)
        )

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        routed = super().forward(x, aux_losses)
        return torch.stack([routed, *(expert(x) for expert in self.shared)]).sum(dim=0)

    def _experts(self) -> Iterator[FeedForward]:
        yield from super()._experts()
        yield from (cast(FeedForward, expert) for expert in self.shared)


@register(
    "loss_free_experts",
    formula="sum of p_e relu_e(x) over the top_k e by p + b, p = sigmoid(x R); after each step "
    "b <- b + rate sign(mean load - load)",
    source="Wang et al. 2024, arXiv:2408.15664, sec. 3.1, alg. 1, gates of sec. 4.1",
)
class LossFreeExperts(MixtureOfExperts):
    """A mixture that is balanced by biases of the selection, without a loss and its gradient.

    If a step selects an expert less often than the mean, over all tokens but padding, the bias of
    the expert rises; if more often, it falls. Gates do not depend on it. Biases are stored and
    averaged with the weights. The rest is as in `mixture_of_experts`, except that the gates of
    several experts are not divided by their sum.

    Args:
        d_ff: hidden width of each expert; 4 * d_model unless given; the paper's are narrower.
        n_experts: E.
        top_k: experts per token; 6 of 64 in the paper, in addition to 2 shared ones.
        gate: the function of the router's outputs that gives p; the paper prefers sigmoid.
        rate: by how much each bias changes after a step; 0.001 in the paper.
        capacity: as in `mixture_of_experts`.
    """

    batch_dependence = "keeps loads from batch to batch"
    divides_gates = False

    offset: Tensor  # (E,)
    loads: Tensor  # (E,), since the last step

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        dropout: float,
        *,
        d_ff: PositiveInt | None = None,
        bias: bool = True,
        n_experts: AtLeastTwo = 4,
        top_k: PositiveInt = 1,
        gate: Literal["sigmoid", "softmax"] = "sigmoid",
        rate: NonNegativeFloat = 0.001,
        capacity: PositiveFloat | None = None,
    ) -> None:
        super().__init__(
            dims,
            dropout,
            d_ff=d_ff,
            bias=bias,
            n_experts=n_experts,
            top_k=top_k,
            balance=0.0,
            capacity=capacity,
        )
        self.gate = gate
        self.rate = rate
        self.register_buffer("offset", torch.zeros(n_experts))
        self.register_buffer("loads", torch.zeros(n_experts), persistent=False)

    @torch.no_grad()
    def after_update(self) -> None:
        self.offset.add_(torch.sign(self.loads.mean() - self.loads), alpha=self.rate)
        self.loads.zero_()

    def _to_probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() if self.gate == "sigmoid" else super()._to_probabilities(logits)

    def _selection_scores(self, p: Tensor) -> Tensor:
        return p + self.offset

    def _balance(self, p: Tensor, selected: Tensor, aux_losses: AuxLosses) -> None:
        self.loads.add_((selected * aux_losses.is_token[:, :, None]).sum(dim=(0, 1)))
