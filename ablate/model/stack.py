"""A layer, and a stack of them: what encoder and decoder have in common.

B batch, T tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from ablate.parts.attention import Attention, AttentionContext
from ablate.parts.dims import Dropout
from ablate.parts.dropout import ElementDropout
from ablate.parts.feed_forward import AuxLosses, FeedForward
from ablate.parts.mask import Mask
from ablate.parts.position import Position
from ablate.parts.residual import Calibration, Residual


class Layer(nn.Module):
    """Self-attention, in the decoder cross-attention to the source, then feed-forward."""

    cross_attention: Attention | None

    def __init__(
        self, attentions: Sequence[Attention], feed_forward: FeedForward, residual: Residual
    ) -> None:
        super().__init__()
        self.attention, *cross = attentions
        self.cross_attention = cross[0] if cross else None
        self.feed_forward = feed_forward
        self.residual = residual

    @property
    def attentions(self) -> list[Attention]:
        """Return its attentions, in order."""
        return [a for a in (self.attention, self.cross_attention) if a is not None]

    def forward(
        self, x: Tensor, contexts: Sequence[AttentionContext], aux_losses: AuxLosses | None
    ) -> Tensor:
        """Send the stream ``x`` through the layer; ``contexts`` has one for each attention."""
        attend = [_looking(*pair) for pair in zip(self.attentions, contexts, strict=True)]
        return self.residual(x, *attend, lambda y: self.feed_forward(y, aux_losses))


def _looking(attention: Attention, context: AttentionContext) -> Callable[[Tensor], Tensor]:
    return lambda x: attention(x, context)


class Stack(nn.Module):
    """Positions, dropout, layers, and whatever the residual wiring begins with and ends in.

    Args:
        position: the encoding.
        mask: the rule of self-attention.
        layers: from the bottom; one and the same block of weights may stand at several.
        opening: embeddings to the residual stream.
        closing: the residual stream to the stack's output.
        dropout: of words, embeddings and layers.
    """

    def __init__(
        self,
        *,
        position: Position,
        mask: Mask,
        layers: Sequence[Layer],
        opening: nn.Module,
        closing: nn.Module,
        dropout: Dropout,
    ) -> None:
        super().__init__()
        self.position = position
        self.mask = mask
        blocks = list(dict.fromkeys(layers))
        self.layers = nn.ModuleList(blocks)
        self.order = tuple(blocks.index(layer) for layer in layers)
        self.opening = opening
        self.closing = closing
        self.word_dropout = nn.Dropout1d(dropout.word)
        self.dropout = ElementDropout(dropout.embedding)
        self.layer_dropout = dropout.layer

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        contexts: Sequence[Sequence[AttentionContext]],
        aux_losses: AuxLosses | None = None,
    ) -> Tensor:
        """Send embeddings ``x`` (B, T, D) at ``positions`` (T,) through all layers.

        Args:
            x: embeddings.
            positions: where they stand.
            contexts: for each layer, what each of its attentions may look at.
            aux_losses: takes the losses that parts have of their own.
        """
        x = self.dropout(self.position.embed(self.word_dropout(x), positions))
        x = self.opening(x)
        score_lists: list[list[Tensor]] = [[] for _ in contexts[0]]
        for number, (block, of_layer) in enumerate(zip(self.order, contexts, strict=True)):
            here = [
                replace(context, layer=number, previous_scores=previous_scores)
                for context, previous_scores in zip(of_layer, score_lists, strict=True)
            ]
            x = self._unless_dropped(self.layers[block](x, here, aux_losses), x)
        return self.closing(x)

    @property
    def blocks(self) -> list[Layer]:
        """Return the blocks of weights, in the order of their first use."""
        return [cast(Layer, block) for block in self.layers]

    @property
    def needs_calibration(self) -> bool:
        """Return whether its wiring wants a profiling pass before training."""
        return any(layer.residual.needs_calibration for layer in self.blocks)

    def calibrate(self, calibration: Calibration | None) -> None:
        """Begin a profiling pass, or end it with None."""
        for layer in self.blocks:
            layer.residual.calibration = calibration

    def _unless_dropped(self, y: Tensor, x: Tensor) -> Tensor:
        if not (self.training and self.layer_dropout):
            return y
        return torch.where(torch.rand((), device=x.device) < self.layer_dropout, x, y)
