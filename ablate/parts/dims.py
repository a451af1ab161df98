"""The numbers that several parts must agree on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from ablate.registry import Frozen

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A probability of dropping something."""

StandardDeviation = Annotated[float, Field(gt=0.0)] | Literal["inv_sqrt_d"]
"""Of a normal initialisation; ``inv_sqrt_d`` is 1 / sqrt(d_model)."""


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
    def _heads_share_the_width(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        d_model, n_heads = given.get("d_model"), given.get("n_heads")
        missing = [name for name in ("d_k", "d_v") if given.get(name) is None]
        if not (missing and isinstance(d_model, int) and isinstance(n_heads, int)):
            return given
        if min(d_model, n_heads) < 1:  # said by their own fields
            return {**given, **dict.fromkeys(missing, 1)}
        if d_model % n_heads:
            raise ValueError(
                f"d_model ({d_model}) is not a multiple of n_heads ({n_heads}); "
                f"change one of them, or say {' and '.join(missing)} too"
            )
        return {**given, **dict.fromkeys(missing, d_model // n_heads)}

    def std(self, wanted: StandardDeviation) -> float:
        """Return a standard deviation as a number."""
        return self.d_model**-0.5 if wanted == "inv_sqrt_d" else wanted


class Dropout(Frozen):
    """Where activations are dropped while training, each with its own probability.

    Attributes:
        embedding: the sum of token embedding and position.
        residual: the output of every sub-layer.
        attention: the attention weights.
        activation: the hidden layer of the feed-forward.
    """

    embedding: Rate = 0.1
    residual: Rate = 0.1
    attention: Rate = 0.0
    activation: Rate = 0.0


class Place(Frozen):
    """Where a layer stands, for wirings and initialisations that depend on depth.

    Attributes:
        side: the stack the layer belongs to.
        layer: its number from the bottom, 0 first.
        n_layers: layers in its own stack.
        n_sublayers: what it holds: 2 in the encoder, 3 in the decoder.
        n_encoder_layers: layers in the encoder.
        n_decoder_layers: layers in the decoder.
    """

    side: Literal["encoder", "decoder"]
    layer: int
    n_layers: int
    n_sublayers: int
    n_encoder_layers: int
    n_decoder_layers: int
