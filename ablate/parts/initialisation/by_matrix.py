"""Initialisations for which the shape and the role of a matrix are enough."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.initialisation.contract import Initialisation
from ablate.parts.roles import Role
from ablate.registry import AddedOption, register


@register(
    "xavier",
    formula="W ~ U(-a, a), a = gain sqrt(6 / (fan_in + fan_out)), or normal with that variance",
    source="Glorot & Bengio 2010, AISTATS, eq. 16",
)
class Xavier(Initialisation):
    """A compromise between preserving the variance of activations and of gradients; biases 0.

    Args:
        gain: factor of the standard deviation.
        distribution: ``uniform`` as in the paper, or ``normal`` with the same variance,
            gain^2 2 / (fan_in + fan_out).
    """

    def __init__(
        self,
        dims: Dims,
        *,
        gain: PositiveFloat = 1.0,
        distribution: Literal["uniform", "normal"] = "uniform",
    ) -> None:
        super().__init__(dims)
        self.gain = gain
        self.distribution = distribution

    def weight(self, linear: nn.Linear, role: Role) -> None:
        if self.distribution == "uniform":
            nn.init.xavier_uniform_(linear.weight, gain=self.gain)
        else:
            nn.init.xavier_normal_(linear.weight, gain=self.gain)


@register(
    "xavier_packed",
    formula="as xavier; a = sqrt(6 / (fan_in + fan_out)) / sqrt(2) for queries, keys and values",
    source="fairseq, multihead_attention.py; torch.nn.MultiheadAttention",
)
class XavierPacked(Initialisation):
    """Xavier, but queries, keys and values with gain 1 / sqrt(2); biases 0.

    This is Xavier's rule for one packed matrix (3D, D) instead of three square ones. These are the
    attention weights of fairseq; `fairseq` has its biases and its feed-forwards, too.

    Args:
        packed: what has this gain: all three (``qkv``), or keys and values alone (``kv``).
    """

    def __init__(
        self,
        dims: Dims,
        *,
        packed: Annotated[Literal["qkv", "kv"], AddedOption("qkv")] = "qkv",
    ) -> None:
        super().__init__(dims)
        self.packed = packed

    def weight(self, linear: nn.Linear, role: Role) -> None:
        is_packed = role.is_packed and (self.packed == "qkv" or not role.is_query)
        nn.init.xavier_uniform_(linear.weight, gain=2**-0.5 if is_packed else 1.0)


@register(
    "fairseq",
    formula="attention: W as xavier_packed, b of q, k, v as torch, others 0; feed-forward as "
    "torch, or as xavier; output matrix N(0, 1 / d_model)",
    source="fairseq, multihead_attention.py, transformer_layer.py and transformer_decoder.py; "
    "feed_forward: xavier to its version 0.9.0, torch since commit 73e1f683 of March 2020",
)
class Fairseq(Initialisation):
    """The initial weights of fairseq's Transformer.

    Its attention overwrites the weights of four PyTorch layers with Xavier's, three of them with
    gain 1 / sqrt(2), and sets only the bias of the fourth, the output's, to 0. Its table has a row
    of zeros for padding; here that row is drawn like the others, which affects one of V logits at
    the first step, and nothing else.

    Args:
        feed_forward: ``torch``: both matrices and their biases as PyTorch initialises them, as in
            fairseq since version 0.10; ``xavier``: Xavier's matrices, biases 0, as in fairseq up to
            version 0.9; at d_ff = 2 d_model their standard deviations are 1.41 and 2 times larger.
    """

    def __init__(self, dims: Dims, *, feed_forward: Literal["torch", "xavier"] = "torch") -> None:
        super().__init__(dims)
        self.feed_forward = feed_forward

    def weight(self, linear: nn.Linear, role: Role) -> None:
        linear.reset_parameters()  # for the bias, too
        if role.kind == "feed_forward" and self.feed_forward == "torch":
            return
        if role.kind == "output":
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        else:
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5 if role.is_packed else 1.0)
        if linear.bias is not None and not role.is_packed:
            nn.init.zeros_(linear.bias)

    def bias(self, bias: Tensor) -> None:
        return


@register(
    "torch",
    formula="W, b ~ U(-a, a), a = 1 / sqrt(fan_in)",
    source="He et al. 2015, arXiv:1502.01852, as in torch.nn.Linear (a = sqrt 5)",
)
class TorchDefault(Initialisation):
    """Weights and biases as PyTorch initialises them."""

    def weight(self, linear: nn.Linear, role: Role) -> None:
        linear.reset_parameters()  # the bias, too

    def bias(self, bias: Tensor) -> None:
        return


@register(
    "normal",
    formula="W ~ N(0, std^2)",
    source="Radford et al. 2018, Improving Language Understanding, sec. 4.1",
)
class Normal(Initialisation):
    """One normal distribution for matrices of all sizes; biases 0.

    Args:
        std: standard deviation; the paper's unless given.
    """

    def __init__(self, dims: Dims, *, std: PositiveFloat = 0.02) -> None:
        super().__init__(dims)
        self.std = std

    def weight(self, linear: nn.Linear, role: Role) -> None:
        nn.init.normal_(linear.weight, std=self.std)


@register(
    "small",
    formula="attention: W ~ N(0, 2 / (5 d_model)); others: W ~ N(0, 2 / (fan_in + fan_out))",
    source="Nguyen & Salazar 2019, arXiv:1910.05895, sec. 2.2 (SmallInit), and their code",
)
class Small(Initialisation):
    """Attention has the variance of the feed-forward; Xavier's normal elsewhere; biases 0.

    All four projections of an attention have the variance 2 / (5 d_model), which is Xavier's for a
    feed-forward with d_ff = 4 d_model.
    """

    def weight(self, linear: nn.Linear, role: Role) -> None:
        if role.kind == "attention":
            nn.init.normal_(linear.weight, std=(2 / (5 * self.dims.d_model)) ** 0.5)
        else:
            nn.init.xavier_normal_(linear.weight)
