"""Embeddings: from ids to vectors, and from vectors to logits.

B batch, T tokens, D d_model, E rank, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from ablate.parts.dims import Dims, StandardDeviation
from ablate.parts.roles import Role, Roles
from ablate.registry import AddedOption, Part, register


@dataclass(frozen=True)
class Vocabulary:
    """Sizes of the two vocabularies, and whether they are one."""

    n_src: int
    n_tgt: int
    is_joint: bool
    n_unwritten: int = 2  # ids, from 0, that are never targets: padding and begin of sentence
    unknown: int = 3  # the id of the unknown word


MASKED_LOGIT = -1e9
"""The logit of a token that is masked out; it has no gradient."""


Distribution = Literal["normal", "uniform", "xavier"]

_MIN_ROWS = 64
_LOGITS_BYTES = {"cpu": 2**25}  # glibc returns larger blocks to the system after each use
_DEFAULT_LOGITS_BYTES = 2**29


class TokenEmbedding(nn.Embedding):
    """Word vectors (V, D), stored as one matrix or as the product of (V, E) and (E, D).

    With ``fix_norm`` word vectors are divided by their length before use; with ``has_norm``
    embeddings are normalised by a LayerNorm, and logits are computed without it.
    """

    projection: nn.Parameter | None
    norm: nn.LayerNorm | None

    def __init__(
        self, size: int, d_model: int, *, rank: int | None, fix_norm: bool, has_norm: bool
    ) -> None:
        super().__init__(size, rank or d_model)
        self.d_model = d_model
        self.fix_norm = fix_norm
        self.projection = None if rank is None else nn.Parameter(torch.empty(rank, d_model))
        self.norm = nn.LayerNorm(d_model) if has_norm else None
        self.std = 1.0  # of the initial word vectors

    def draw(self, init: Distribution, std: float) -> None:
        """Initialise the word vectors, with ``std`` unless ``init`` is xavier."""
        is_xavier = init == "xavier"
        self.std = (2 / (self.num_embeddings + self.d_model)) ** 0.5 if is_xavier else std
        if init == "normal":
            nn.init.normal_(self.weight, std=self.std)
        else:
            bound = 3**0.5 * self.std
            nn.init.uniform_(self.weight, -bound, bound)
        if self.projection is not None:
            nn.init.normal_(self.projection, std=self.projection.size(0) ** -0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ``ids`` (B, T): (B, T, D)."""
        x = super().forward(ids)
        if self.projection is not None:
            x = (x @ self.projection).to(x.dtype)  # under autocast, the product is bf16
        if self.fix_norm:
            x = F.normalize(x, dim=-1)
        if self.norm is not None:
            x = self.std * self.norm(x / self.std)
        return x

    def scores(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the dot products of ``x`` (B, T, D) and every word vector, (B, T, V)."""
        weight = self.weight
        if self.fix_norm:
            vectors = weight if self.projection is None else weight @ self.projection  # (V, D)
            weight = weight / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        if self.projection is not None:
            x = x @ self.projection.T  # (B, T, E)
        return F.linear(x, weight, bias)


class Embedding(nn.Module, Part, slot="embedding"):
    """The contract, and the code that all parts of the slot share.

    A part defines which of three matrices are one: ``src_table``, ``tgt_table`` (V, D) and
    ``output``. A separate output is a linear layer like the others: it is never factorised, and
    `initialisation` initialises it.

    Args:
        dims: gives the width D.
        vocabulary: sizes of the two vocabularies.
        scale: the factor of embeddings: ``sqrt_d``, sqrt(d_model), as in Vaswani et al. 2017, sec.
            3.4; ``none``; or a number.
        init: the initial distribution of the tables: ``normal`` or ``uniform``, both with mean 0
            and standard deviation init_std; or ``xavier``, uniform with variance 2 / (V + d_model).
        init_std: with ``inv_sqrt_d``, 1 / sqrt(d_model), scaled embeddings have variance 1 at
            first.
        fix_norm: whether every word vector, of the output too, is divided by its length (Nguyen &
            Chiang 2018, arXiv:1710.01329, in the form of Nguyen & Salazar's code of 2019). Its new
            length g is not learned: it is ``scale`` at the input and 1 at the output. The initial
            standard deviation then only affects how far an optimizer's step rotates a vector,
            and with ``norm`` the size of its output.
        rank: E, to store a table as a (V, E) and an (E, D) matrix (Lan et al. 2020,
            arXiv:1909.11942, sec. 3.1); the product has the initial variance of an unfactorised
            table. None: not factorised.
        norm: whether embeddings are normalised by a LayerNorm before they are scaled (Dettmers et
            al. 2022, arXiv:2110.02861, sec. 2.3). Its output is multiplied by the standard
            deviation with which the tables are drawn, so that the norm does not change the initial
            size of embeddings; what t_fixup then makes of the tables changes their logits alone.
        output_bias: whether the logits have a bias.
        mask_unwritten: whether the logits of padding and begin of sentence are constant, so that
            their probabilities are 0 (the code of Nguyen & Salazar 2019). Smoothing must leave them
            out, too: label_smoothing has form unmasked for that.

    Attributes:
        n_tgt: size of the target vocabulary.
        output_multiplier: factor of the logits before the bias, for initialisations that need one.

    Raises:
        ValueError: if source and target share a table but not a vocabulary; if rank is not smaller
            than d_model; if xavier is given a standard deviation.
    """

    shares_input = False
    has_output = False

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        dims: Dims,
        vocabulary: Vocabulary,
        *,
        scale: Literal["sqrt_d", "none"] | PositiveFloat = "sqrt_d",
        init: Distribution = "normal",
        init_std: StandardDeviation = "inv_sqrt_d",
        fix_norm: bool = False,
        rank: PositiveInt | None = None,
        norm: bool = False,
        output_bias: bool = False,
        mask_unwritten: Annotated[bool, AddedOption(False)] = False,
    ) -> None:
        super().__init__()
        self.n_masked = vocabulary.n_unwritten if mask_unwritten else 0
        if self.shares_input and not vocabulary.is_joint:
            raise ValueError(
                "an embedding whose inputs are tied needs one vocabulary for both languages; set "
                "tokenizer.joint: true, or choose tied_target or separate"
            )
        if rank is not None and rank >= dims.d_model:
            raise ValueError(
                f"rank ({rank}) must be smaller than d_model ({dims.d_model}), or nothing is "
                "factorised; give a smaller rank, or leave it out"
            )
        if init == "xavier" and init_std != "inv_sqrt_d":
            raise ValueError(
                "xavier has a standard deviation of its own, sqrt(2 / (vocabulary + d_model)); "
                f"leave out init_std ({init_std}), or choose init: normal or uniform"
            )
        factors = {"sqrt_d": dims.d_model**0.5, "none": 1.0}
        self.factor = factors[scale] if isinstance(scale, str) else scale
        self.fix_norm = fix_norm
        self.output_multiplier = 1.0

        def make_table(size: int) -> TokenEmbedding:
            table = TokenEmbedding(size, dims.d_model, rank=rank, fix_norm=fix_norm, has_norm=norm)
            table.draw(init, dims.std(init_std))
            return table

        self.n_tgt = vocabulary.n_tgt
        self.tgt_table = make_table(vocabulary.n_tgt)
        self.src_table = None if self.shares_input else make_table(vocabulary.n_src)
        self.output = (
            nn.Linear(dims.d_model, vocabulary.n_tgt, bias=output_bias) if self.has_output else None
        )
        has_bias = output_bias and not self.has_output
        self.bias = nn.Parameter(torch.zeros(vocabulary.n_tgt)) if has_bias else None

    def src(self, ids: Tensor) -> Tensor:
        """Embed source ``ids`` (B, T) as (B, T, D)."""
        return (self.tgt_table if self.src_table is None else self.src_table)(ids) * self.factor

    def tgt(self, ids: Tensor) -> Tensor:
        """Embed target ``ids`` (B, T) as (B, T, D)."""
        return self.tgt_table(ids) * self.factor

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (B, T, V) of every target token for ``x`` (B, T, D)."""
        x = x * self.output_multiplier
        if self.output is None:
            logits = self.tgt_table.scores(x, self.bias)
        else:
            weight = self.output.weight
            weight = F.normalize(weight, dim=-1) if self.fix_norm else weight
            logits = F.linear(x, weight, self.output.bias)
        if self.n_masked:
            return F.pad(logits[..., self.n_masked :], (self.n_masked, 0), value=MASKED_LOGIT)
        return logits

    def linear_roles(self) -> Roles:
        """Return the role of the output, if it is a separate matrix."""
        return {} if self.output is None else {self.output: Role(kind="output")}

    def rows_at_once(self, device: torch.device) -> int:
        """Return for how many rows to compute logits at a time, where they are not kept.

        The logits of all rows together would be by far the largest tensor.
        """
        n_bytes = _LOGITS_BYTES.get(device.type, _DEFAULT_LOGITS_BYTES)
        return max(_MIN_ROWS, n_bytes // (torch.float32.itemsize * self.n_tgt))


@register(
    "tied",
    formula="x = s E[id]; logits = h E^T; one E for source and target",
    source="Press & Wolf 2017, arXiv:1608.05859, sec. 3; Vaswani et al. 2017, sec. 3.4",
)
class Tied(Embedding):
    """One matrix for source, target and output ("three-way tying")."""

    shares_input = True


@register(
    "tied_target",
    formula="x_src = s E_src[id]; x_tgt = s E_tgt[id]; logits = h E_tgt^T",
    source="Press & Wolf 2017, arXiv:1608.05859, sec. 3",
    is_contract=True,
)
class TiedTarget(Embedding):
    """One matrix for target and output, another for the source."""


@register(
    "tied_inputs",
    formula="x = s E[id], one E for source and target; logits = h U^T",
    source="Narang et al. 2021, arXiv:2102.11972, sec. 2.4 (tied encoder/decoder input)",
)
class TiedInputs(Embedding):
    """One matrix for source and target, another for the output."""

    shares_input = True
    has_output = True


@register(
    "separate",
    formula="x_src = s E_src[id]; x_tgt = s E_tgt[id]; logits = h U^T",
    source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.4",
)
class Separate(Embedding):
    """Three matrices."""

    has_output = True
