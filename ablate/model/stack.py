"""A layer and a stack of layers, for the encoder and the decoder.

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
from ablate.parts.dropout import ElementDropout, WordDropout
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
        """Apply the layer to the stream ``x``; ``contexts`` has one for each attention."""
        attentions = [_bind(*pair) for pair in zip(self.attentions, contexts, strict=True)]
        return self.residual(x, *attentions, lambda y: self.feed_forward(y, aux_losses))


def _bind(attention: Attention, context: AttentionContext) -> Callable[[Tensor], Tensor]:
    return lambda x: attention(x, context)


class Stack(nn.Module):
    """Positions, dropout, layers, and the transforms at both ends of the residual stream.

    Several layers, given from the bottom, may be the same block of weights.
    """

    def __init__(  # noqa: PLR0913 - one argument for each part of a stack
        self,
        *,
        position: Position,
        mask: Mask,
        layers: Sequence[Layer],
        input_transform: nn.Module,
        output_transform: nn.Module,
        dropout: Dropout,
        word_dropout: WordDropout,
    ) -> None:
        super().__init__()
        self.position = position
        self.mask = mask
        blocks = list(dict.fromkeys(layers))
        self.layers = nn.ModuleList(blocks)
        self.order = tuple(blocks.index(layer) for layer in layers)
        self.opening = input_transform
        self.closing = output_transform
        self.word_dropout = word_dropout
        self.dropout = ElementDropout(dropout.embedding)
        self.layer_dropout = dropout.layer

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        contexts: Sequence[Sequence[AttentionContext]],
        aux_losses: AuxLosses | None = None,
    ) -> Tensor:
        """Apply all layers to embeddings ``x`` (B, T, D) at ``positions`` (T,).

        ``contexts`` has, for each layer, one for each of its attentions.
        """
        x = self.dropout(self.position.embed(x, positions))
        x = self.opening(x)
        score_lists: list[list[Tensor]] = [[] for _ in contexts[0]]
        value_lists: list[list[Tensor]] = [[] for _ in contexts[0]]
        for number, (block, layer_contexts) in enumerate(zip(self.order, contexts, strict=True)):
            numbered = [
                replace(
                    context,
                    layer=number,
                    position=context.position and context.position.at_layer(number),
                    previous_scores=previous_scores,
                    first_values=first_values,
                )
                for context, previous_scores, first_values in zip(
                    layer_contexts, score_lists, value_lists, strict=True
                )
            ]
            y = self.layers[block](x, numbered, aux_losses)
            if self.training and self.layer_dropout:
                y = torch.where(torch.rand((), device=x.device) < self.layer_dropout, x, y)
            x = y
        return self.closing(x)

    def masks(
        self, query_positions: Tensor, key_positions: Tensor, is_token: Tensor
    ) -> list[Tensor]:
        """Return the mask of each layer's self-attention; arguments are as in `Mask.allowed`."""
        rules = [self.mask.at_layer(number) for number in range(len(self.order))]
        allowed = {
            rule: rule.allowed(query_positions, key_positions, is_token)
            for rule in dict.fromkeys(rules)
        }
        return [allowed[rule] for rule in rules]

    @property
    def blocks(self) -> list[Layer]:
        """Return the blocks of weights, in the order of their first use."""
        return [cast(Layer, block) for block in self.layers]

    @property
    def needs_calibration(self) -> bool:
        """Return whether its residual scheme requires a profiling pass before training."""
        return any(layer.residual.needs_calibration for layer in self.blocks)

    def calibrate(self, calibration: Calibration | None) -> None:
        """Begin a profiling pass, or end it with None."""
        for layer in self.blocks:
            layer.residual.calibration = calibration
