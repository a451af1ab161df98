"""Sizes and rates that several parts share."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch import Tensor

from ablate.registry import AddedOption, Frozen

Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
AtLeastTwo = Annotated[int, Field(ge=2)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
"""The probability with which dropout drops."""

StandardDeviation = Annotated[float, Field(gt=0.0)] | Literal["inv_sqrt_d"]
"""The standard deviation of initial weights; ``inv_sqrt_d`` is 1 / sqrt(d_model)."""


class Dims(Frozen):
    """Sizes shared by every part of one model.

    Attributes:
        d_model: width of the residual stream.
        n_heads: attention heads per layer.
        max_len: longest sequence, in tokens, on either side.
        d_k: width of one head's queries and keys; d_model / n_heads unless given.
        d_v: width of one head's values; d_model / n_heads unless given.
    """

    d_model: PositiveInt
    n_heads: PositiveInt
    max_len: PositiveInt
    d_k: PositiveInt
    d_v: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _divide_width_among_heads(cls, sizes: object) -> object:
        if not isinstance(sizes, dict):
            return sizes
        d_model, n_heads = sizes.get("d_model"), sizes.get("n_heads")
        missing = [name for name in ("d_k", "d_v") if sizes.get(name) is None]
        if not (
            isinstance(d_model, int) and isinstance(n_heads, int) and min(d_model, n_heads) > 0
        ):
            return {**sizes, **dict.fromkeys(missing, 1)}  # the validation of both reports it
        if missing and d_model % n_heads:
            raise ValueError(
                f"d_model ({d_model}) is not a multiple of n_heads ({n_heads}); "
                f"change one of them, or give {' and '.join(missing)} too"
            )
        return {**sizes, **dict.fromkeys(missing, d_model // n_heads)}

    def std(self, std: StandardDeviation) -> float:
        """Return a standard deviation as a number."""
        return self.d_model**-0.5 if std == "inv_sqrt_d" else std


class Dropout(Frozen):
    """Dropout rates during training, one for each location where dropout acts.

    Values that are not dropped are scaled up so that the expectation is unchanged, except where a
    layer is dropped. A form whose rate is 0 changes nothing, and is read as the default.

    Attributes:
        word: whole words, before positions are added.
        word_form: what is dropped. ``token``: the embeddings of tokens become 0, independently of
            each other, and the others are scaled up. ``type``: likewise, but all tokens of a
            sentence with the same id are dropped or kept together (Gal & Ghahramani 2016,
            arXiv:1512.05287, sec. 4.2). ``unknown``: a token becomes the unknown word and nothing
            is scaled (the code of Nguyen & Salazar 2019, arXiv:1910.05895).
        embedding: the sum of token embedding and position.
        residual: the output of every sub-layer.
        attention: the attention weights.
        head: whole attention heads, of each sentence separately.
        head_form: ``independent``: each head independently, the others scaled by 1 / (1 - rate).
            ``drophead``: never all heads, and the others are scaled by heads / heads kept (Zhou et
            al. 2020, arXiv:2004.13342, alg. 1).
        activation: the hidden layer of the feed-forward.
        layer: whole layers, of the whole batch (Fan et al. 2020, LayerDrop). A dropped layer is
            still computed: its auxiliary losses, loads of experts, attention scores and values
            count.
    """

    word: Rate = 0.0
    word_form: Annotated[Literal["token", "type", "unknown"], AddedOption("token")] = "token"
    embedding: Rate = 0.1
    residual: Rate = 0.1
    attention: Rate = 0.0
    head: Rate = 0.0
    head_form: Annotated[Literal["independent", "drophead"], AddedOption("independent")] = (
        "independent"
    )
    activation: Rate = 0.0
    layer: Rate = 0.0

    @field_validator("word_form", "head_form")
    @classmethod
    def _default_without_rate(cls, form: str, info: ValidationInfo) -> str:
        name = info.field_name or ""
        rate = info.data.get(name.removesuffix("_form"))
        return form if rate else cls.model_fields[name].default


Side = Literal["encoder", "decoder"]


class StackInfo(Frozen):
    """One of the two stacks, for parts that differ between them or depend on depth."""

    side: Side
    n_encoder_layers: PositiveInt
    n_decoder_layers: PositiveInt

    @property
    def n_layers(self) -> int:
        """Return the number of layers of this stack."""
        return self.n_encoder_layers if self.side == "encoder" else self.n_decoder_layers

    @property
    def n_sublayers(self) -> int:
        """Return the number of sub-layers per layer: 2 in the encoder, 3 in the decoder."""
        return 2 if self.side == "encoder" else 3


class LayerInfo(StackInfo):
    """The location of a layer, for residual schemes that depend on depth."""

    layer: NonNegativeInt  # from the bottom of its stack, 0 first


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in single precision, or in its own type if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
