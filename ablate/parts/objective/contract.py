"""The contract of objectives.

N target tokens, V vocabulary size; B sentences of T tokens, C numbers for each of these. Losses are
sums over tokens, in nats.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ablate.registry import Part

Epsilon = Annotated[float, Field(ge=0.0, lt=1.0)]
Smoothing = Literal["none", "all", "unmasked"]


class Objective(Part, slot="objective"):
    """The contract: logits and targets in, the sum of the tokens' losses out.

    Args:
        pad: the id of padding, whose loss is 0.

    Attributes:
        n_passes: how many times each batch goes through the model, with independent dropout.
        extra_passes: forward and backward passes of a batch per step in addition to these, for the
            count of FLOPs.
        smoothing: the tokens that get a share of the target's probability: ``none``; ``all``, those
            that the embedding masks included; or those that it does not mask.
    """

    n_passes = 1
    extra_passes: float = 0.0
    smoothing: Smoothing = "none"

    def __init__(self, pad: int) -> None:
        self.pad = pad

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, (), of ``logits`` (N, V), summed over ``targets`` (N,) but padding.

        With several passes the N rows are those of all passes, one pass after the other, and the
        loss is the mean over passes.
        """

    def context(self, targets: Tensor) -> Tensor | None:
        """Return what the loss of a token depends on in addition to its logits and target.

        Args:
            targets: of whole sentences, (B, T).

        Returns:
            (B, T, C), whose rows are passed to `loss_in_context`; None if there is nothing.
        """
        return None

    def loss_in_context(self, logits: Tensor, targets: Tensor, context: Tensor) -> Tensor:
        """Return the loss as `loss` does, given the tokens' rows of `context`, (N, C)."""
        return self.loss(logits, targets)
