"""Initialisations of the linear layers, by their shapes, their roles and their depth.

Embeddings and learned positions have their own option ``init_std``; of the initialisations only
`t_fixup` changes a table, that of the embeddings. Norms start with gain 1 and bias 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Protocol

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import Dims, Side
from ablate.parts.embedding import Embedding
from ablate.parts.feed_forward import FeedForward
from ablate.parts.roles import Role, Roles
from ablate.registry import AddedOption, Part, register


class Block(Protocol):
    """A block of weights, for one layer or several, as an initialisation reads it."""

    @property
    def attentions(self) -> Sequence[Attention]: ...

    @property
    def feed_forward(self) -> FeedForward: ...

    def modules(self) -> Iterator[nn.Module]: ...


class Stack(Protocol):
    """A stack of layers: its blocks by first use, and the block of each layer from the bottom."""

    @property
    def blocks(self) -> Sequence[Block]: ...

    @property
    def order(self) -> Sequence[int]: ...


class Model(Protocol):
    """An assembled model, as an initialisation reads it."""

    @property
    def embedding(self) -> Embedding: ...

    @property
    def encoder(self) -> Stack: ...

    @property
    def decoder(self) -> Stack: ...

    def modules(self) -> Iterator[nn.Module]: ...


def roles(model: Model) -> Roles:
    """Return the role of every linear layer of ``model``."""
    all_roles = _defaults(model) | model.embedding.linear_roles()
    stacks: tuple[tuple[Side, Stack], ...] = (
        ("encoder", model.encoder),
        ("decoder", model.decoder),
    )
    for side, stack in stacks:
        n_layers = len(stack.order)
        for number, block in enumerate(stack.blocks):
            depth = stack.order.index(number) + 1
            n_branches = n_layers * (len(block.attentions) + 1)
            block_roles = _defaults(block)
            for attention in block.attentions:
                block_roles |= attention.linear_roles()
            block_roles |= block.feed_forward.linear_roles()
            for linear, role in block_roles.items():
                all_roles[linear] = replace(
                    role, side=side, depth=depth, n_layers=n_layers, n_branches=n_branches
                )
    return all_roles


def _defaults(module: Block | Model) -> Roles:
    return {linear: Role() for linear in module.modules() if isinstance(linear, nn.Linear)}


class Initialisation(Part, slot="initialisation"):
    """The contract: overwrite the weights of a whole model, in place."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims

    def initialise(self, model: Model) -> None:
        """Set every linear layer's weight with `weight`, then its bias, if any, with `bias`."""
        for linear, role in roles(model).items():
            self.weight(linear, role)
            if linear.bias is not None:
                self.bias(linear.bias)

    @abstractmethod
    def weight(self, linear: nn.Linear, role: Role) -> None:
        """Set the weight of one linear layer."""

    def bias(self, bias: Tensor) -> None:
        """Set the bias of one linear layer, by default to 0."""
        nn.init.zeros_(bias)

    def rate(self, role: Role | None) -> float:
        """Return the factor of the learning rate of a linear layer's weight; of others for None."""
        return 1.0


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


@register(
    "gpt2",
    formula="W ~ N(0, std^2); the last of a residual branch N(0, std^2 / n_branches)",
    source="Radford et al. 2019, Language Models are Unsupervised Multitask Learners, sec. 2.3",
)
class Gpt2(Initialisation):
    """As `normal`, with a factor 1 / sqrt(n_branches) for the last matrix of a residual branch.

    The variance of the sum of all branches of a stack then does not depend on their number, which
    is 2 per layer in the encoder and 3 in the decoder.

    Args:
        std: standard deviation; that of the released code unless given.
    """

    def __init__(self, dims: Dims, *, std: PositiveFloat = 0.02) -> None:
        super().__init__(dims)
        self.std = std

    def weight(self, linear: nn.Linear, role: Role) -> None:
        factor = role.n_branches**-0.5 if role.ends_branch else 1.0
        nn.init.normal_(linear.weight, std=self.std * factor)


@register(
    "depth_scaled",
    formula="W ~ U(-a, a), a = alpha / sqrt(l) sqrt(6 / (fan_in + fan_out)) in layer l = 1, 2, ...",
    source="Zhang et al. 2019, arXiv:1908.11365, sec. 4 (DS-Init)",
)
class DepthScaled(Initialisation):
    """Xavier with a factor that decreases with the depth of the layer in its stack; biases 0.

    A block of weights of several layers has the depth of the lowest. Matrices outside of layers,
    such as a separate output matrix, are initialised as by `xavier`.

    Args:
        alpha: factor of the standard deviation in all layers; 1 in the paper's experiments.
    """

    def __init__(self, dims: Dims, *, alpha: PositiveFloat = 1.0) -> None:
        super().__init__(dims)
        self.alpha = alpha

    def weight(self, linear: nn.Linear, role: Role) -> None:
        gain = self.alpha * role.depth**-0.5 if role.depth else 1.0
        nn.init.xavier_uniform_(linear.weight, gain=gain)


@register(
    "t_fixup",
    formula="xavier; values, outputs of attention and feed-forwards times 0.67 N^-1/4 in an "
    "encoder of N layers and (9 N)^-1/4 in a decoder; tables times (9 N)^-1/4",
    source="Huang et al. 2020, ICML, Improving Transformer Optimization Through Better "
    "Initialization, and their code (layer6ai-labs/T-Fixup)",
)
class TFixup(Initialisation):
    """Weights that are small enough to train without norms and without a warm-up.

    Both must be chosen separately: norm: none, and a schedule with a warm-up of 0. A table that
    source and target share is scaled by the encoder's depth, as in the authors' code.

    Args:
        queries_keys: their initial weights: ``xavier`` as in the paper; ``packed``: 1 / sqrt(2) of
            that, with which the authors' code begins and which it corrects for values only.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        queries_keys: Annotated[Literal["xavier", "packed"], AddedOption("xavier")] = "xavier",
    ) -> None:
        super().__init__(dims)
        self.queries_keys = queries_keys

    def initialise(self, model: Model) -> None:
        super().initialise(model)
        src, tgt = model.embedding.src_table, model.embedding.tgt_table
        depths = {tgt: len(model.decoder.order)}
        depths[tgt if src is None else src] = len(model.encoder.order)
        with torch.no_grad():
            for table, n in depths.items():
                table.weight.mul_((9 * n) ** -0.25)

    def weight(self, linear: nn.Linear, role: Role) -> None:
        gain = 1.0
        if role.is_value or role.kind == "feed_forward" or role.ends_branch:
            n = role.n_layers
            gain = 0.67 * n**-0.25 if role.side == "encoder" else (9 * n) ** -0.25
        elif role.is_packed and self.queries_keys == "packed":
            gain = 2**-0.5
        nn.init.xavier_uniform_(linear.weight, gain=gain)


@register(
    "mup",
    formula="in layers W ~ N(0, 1 / fan_in) and lr b / d_model; logits times b / d_model",
    source="Yang et al. 2022, arXiv:2203.03466, table 8 (maximal update parametrisation)",
)
class Mup(Initialisation):
    """A parametrisation in which the best learning rate does not depend on the width.

    For optimizers like Adam. With b = base_d_model, the learning rate of the matrices in the layers
    is multiplied by b / d_model, and so are the logits; a separate output matrix is initialised
    with N(0, 1 / b). All other parameters have the schedule's rate. At d_model = b the weights are
    N(0, 1 / fan_in) and nothing else changes. The rest of the method consists of options elsewhere:
    scaling: dk, embeddings and learned positions whose scale and init_std are numbers, d_ff and
    n_heads d_k in proportion to d_model (with wider heads or more heads), norm: {name: scale, unit:
    true} instead of scale, and a schedule that does not depend on d_model. Decoupled weight decay
    decreases with the learning rate; the authors' code compensates for that, and this part does
    not. The router of a mixture, whose number of outputs does not grow, has the learning rate of
    the outputs in table 3, which is that of matrices, and their initial variance 1 / fan_in, where
    table 3 has b / d_model^2. Not covered: embedding: {fix_norm: true}; dynamic hyper_connections,
    whose matrices have the full rate; with wider heads, differential, for the vectors of its
    lambda, and shaw, whose vectors then start smaller; t5, whose table starts as N(0, 1 / d_model);
    and, with more instead of wider heads, talking_heads, whose matrices have the full rate, latent
    with its default rank and per_head_shared, whose fan_in then stays while their rate falls, and
    multi_query and grouped_query with as many groups, whose keys and values then have as many
    outputs at any width and, like the router, start with the variance 1 / fan_in.

    Args:
        base_d_model: b, the width at which the learning rate was tuned; a quarter of the base
            model's unless given.
    """

    def __init__(self, dims: Dims, *, base_d_model: PositiveInt = 128) -> None:
        super().__init__(dims)
        self.base_d_model = base_d_model
        self.factor = base_d_model / dims.d_model

    def initialise(self, model: Model) -> None:
        super().initialise(model)
        model.embedding.output_multiplier = self.factor

    def weight(self, linear: nn.Linear, role: Role) -> None:
        fan_in = self.base_d_model if role.kind == "output" else linear.in_features
        nn.init.normal_(linear.weight, std=fan_in**-0.5)

    def rate(self, role: Role | None) -> float:
        return 1.0 if role is None or role.side is None else self.factor
