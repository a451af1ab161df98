"""Initialisations that also depend on the depth or the width of the model."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import nn

from ablate.parts.dims import Dims
from ablate.parts.initialisation.contract import Initialisation, Model
from ablate.parts.roles import Role
from ablate.registry import AddedOption, register


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
