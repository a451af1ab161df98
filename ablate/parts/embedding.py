"""Embeddings: how ids become vectors, and vectors logits.

B batch, T tokens, D d_model, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ablate.parts.dims import Dims, StandardDeviation
from ablate.registry import Part, register


@dataclass(frozen=True)
class Vocabulary:
    """Sizes of the two vocabularies, and whether they are one and the same."""

    n_src: int
    n_tgt: int
    is_joint: bool


class Embedding(nn.Module, Part, slot="embedding"):
    """The contract, and all that the tyings have in common.

    A part says which of the three matrices are one: ``src_table``, ``tgt_table`` (V, D) and
    ``output``. The tables start as N(0, init_std^2); an output of its own is a linear layer
    like the others and starts as `initialisation` says.

    Args:
        dims: gives the width D.
        vocabulary: sizes of the two vocabularies.
        scale: ``sqrt_d`` multiplies the embeddings by sqrt(d_model), as in the paper, sec. 3.4.
        init_std: ``inv_sqrt_d`` makes scaled embeddings start with unit variance.
        output_bias: whether the logits have one.
    """

    def __init__(
        self,
        dims: Dims,
        vocabulary: Vocabulary,
        *,
        scale: Literal["sqrt_d", "none"] = "sqrt_d",
        init_std: StandardDeviation = "inv_sqrt_d",
        output_bias: bool = False,
    ) -> None:
        super().__init__()
        self.factor = dims.d_model**0.5 if scale == "sqrt_d" else 1.0
        std = dims.std(init_std)
        self.tgt_table = _table(vocabulary.n_tgt, dims, std)
        self.src_table = self.make_src_table(dims, vocabulary, std)
        self.output = self.make_output(dims, vocabulary, output_bias)
        self.bias = (
            nn.Parameter(torch.zeros(vocabulary.n_tgt))
            if output_bias and self.output is None
            else None
        )

    def make_src_table(self, dims: Dims, vocabulary: Vocabulary, std: float) -> nn.Embedding | None:
        """Return the source's own table, or None if it is the target's."""
        return _table(vocabulary.n_src, dims, std)

    def make_output(self, dims: Dims, vocabulary: Vocabulary, bias: bool) -> nn.Linear | None:
        """Return the output's own matrix, or None if it is the target's table."""
        return None

    def src(self, ids: Tensor) -> Tensor:
        """Embed source ``ids`` (B, T) as (B, T, D)."""
        return (self.tgt_table if self.src_table is None else self.src_table)(ids) * self.factor

    def tgt(self, ids: Tensor) -> Tensor:
        """Embed target ``ids`` (B, T) as (B, T, D)."""
        return self.tgt_table(ids) * self.factor

    def logits(self, x: Tensor) -> Tensor:
        """Score every target token: (B, T, D) to (B, T, V)."""
        if self.output is not None:
            return self.output(x)
        return nn.functional.linear(x, self.tgt_table.weight, self.bias)


@register(
    "tied", source="Press & Wolf 2017, arXiv:1608.05859, sec. 3; Vaswani et al. 2017, sec. 3.4"
)
class Tied(Embedding):
    """One matrix for source, target and output ("three-way tying").

    Raises:
        ValueError: if the two languages have vocabularies of their own.
    """

    def make_src_table(self, dims: Dims, vocabulary: Vocabulary, std: float) -> nn.Embedding | None:
        if not vocabulary.is_joint:
            raise ValueError(
                "tied needs one vocabulary for both languages; say tokenizer.joint: true, "
                "or choose tied_target or separate"
            )
        return None


@register("tied_target", source="Press & Wolf 2017, arXiv:1608.05859, sec. 2")
class TiedTarget(Embedding):
    """One matrix for target and output, another for the source."""


@register("separate", source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.4")
class Separate(Embedding):
    """Three matrices; the output's starts as `initialisation` says."""

    def make_output(self, dims: Dims, vocabulary: Vocabulary, bias: bool) -> nn.Linear | None:
        return nn.Linear(dims.d_model, vocabulary.n_tgt, bias=bias)


def _table(size: int, dims: Dims, std: float) -> nn.Embedding:
    table = nn.Embedding(size, dims.d_model)
    nn.init.normal_(table.weight, std=std)
    return table
