"""The encoder-decoder Transformer, assembled from a spec.

B batch, S source tokens, T target tokens, N decoded rows, D d_model, H n_heads, V vocabulary.
A mask is True where attention is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ablate.parts.attention import Attention, Cache, View
from ablate.parts.dims import Place
from ablate.parts.embedding import Embedding, Vocabulary
from ablate.parts.feed_forward import FeedForward
from ablate.parts.initialisation import Initialisation
from ablate.parts.norm import Norm
from ablate.parts.position import Position
from ablate.parts.residual import Residual
from ablate.parts.scaling import Scaling
from ablate.registry import Choice, build
from ablate.spec.experiment import ModelSpec

Side = Literal["encoder", "decoder"]


def assemble(spec: ModelSpec, vocabulary: Vocabulary, pad: int) -> Transformer:
    """Build the Transformer that ``spec`` describes, from the inside out.

    Every layer gets parts of its own, except the position encoding: one per stack. The weights
    are drawn from PyTorch's global generator.

    Args:
        spec: the choice for every slot.
        vocabulary: sizes of the two vocabularies.
        pad: the id of padding.

    Raises:
        RefusedError: if a part refuses its dimensions; it names the choice.
    """
    model = Transformer(
        embedding=build(Embedding, spec.embedding, spec.dims, vocabulary, at="model.embedding"),
        encoder=_stack(spec, "encoder"),
        decoder=_stack(spec, "decoder"),
        pad=pad,
        max_len=spec.dims.max_len,
    )
    build(Initialisation, spec.initialisation, at="model.initialisation").initialise(model)
    return model


def _stack(spec: ModelSpec, side: Side) -> Stack:
    stack, dims = spec.stack(side), spec.dims
    n_layers = {s: spec.stack(s).n_layers for s in ("encoder", "decoder")}

    def at(slot: str) -> str:
        return f"model.{side}.{slot}"

    def norm() -> Norm:
        return build(Norm, stack.norm, dims, at=at("norm"))

    def attention(choice: Choice, slot: str = "attention") -> Attention:
        scaling = build(Scaling, stack.scaling, dims, at=at("scaling"))
        return build(Attention, choice, dims, scaling, stack.dropout.attention, at=at(slot))

    def feed_forward() -> FeedForward:
        dropout = stack.dropout.activation
        return build(FeedForward, stack.feed_forward, dims, dropout, at=at("feed_forward"))

    def layer(number: int) -> EncoderLayer | DecoderLayer:
        place = Place(
            side=side,
            layer=number,
            n_layers=stack.n_layers,
            n_sublayers=2 if side == "encoder" else 3,
            n_encoder_layers=n_layers["encoder"],
            n_decoder_layers=n_layers["decoder"],
        )
        residual = build(
            Residual, stack.residual, place, norm, stack.dropout.residual, at=at("residual")
        )
        own = attention(stack.attention)
        if side == "encoder":
            return EncoderLayer(own, feed_forward(), residual)
        cross = attention(stack.cross_attention or stack.attention, "cross_attention")
        return DecoderLayer(own, cross, feed_forward(), residual)

    layers = [layer(number) for number in range(stack.n_layers)]
    position = build(Position, stack.position, dims, at=at("position"))
    return Stack(position, layers, layers[-1].residual.closing(norm), stack.dropout.embedding)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, attention: Attention, feed_forward: FeedForward, residual: Residual) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.residual = residual

    def forward(self, x: Tensor, own: View) -> Tensor:
        """Send ``x`` (B, S, D) through the layer."""
        return self.residual(x, lambda y: self.attention(y, own), self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to the source, then feed-forward."""

    def __init__(
        self,
        attention: Attention,
        cross_attention: Attention,
        feed_forward: FeedForward,
        residual: Residual,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.residual = residual

    def forward(self, x: Tensor, own: View, source: View) -> Tensor:
        """Send ``x`` (B, T, D) through the layer."""
        return self.residual(
            x,
            lambda y: self.attention(y, own),
            lambda y: self.cross_attention(y, source),
            self.feed_forward,
        )


class Stack(nn.Module):
    """Positions, dropout, layers, and whatever the residual wiring ends in."""

    def __init__(
        self,
        position: Position,
        layers: Sequence[EncoderLayer | DecoderLayer],
        closing: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.position = position
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.closing = closing

    def forward(self, x: Tensor, positions: Tensor, views: Sequence[Sequence[View]]) -> Tensor:
        """Send embeddings ``x`` (B, T, D) at ``positions`` (T,) through all layers.

        Args:
            x: embeddings.
            positions: where they stand.
            views: for each layer, what each of its attentions may look at.
        """
        x = self.dropout(self.position.embed(x, positions))
        for layer, views_of_layer in zip(self.layers, views, strict=True):
            x = layer(x, *views_of_layer)
        return self.closing(x)


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves to the decoder.

    Attributes:
        states: (B, S, D).
        mask: True where there is a token, (B, 1, 1, S).
    """

    states: Tensor
    mask: Tensor


class Transformer(nn.Module):
    """Source and target ids in, logits out.

    Args:
        embedding: ids to vectors and vectors to logits.
        encoder: the stack that reads the source.
        decoder: the stack that writes the target.
        pad: the id of padding.
        max_len: longest sequence on either side, in tokens.
    """

    def __init__(
        self, embedding: Embedding, encoder: Stack, decoder: Stack, *, pad: int, max_len: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.encoder = encoder
        self.decoder = decoder
        self.pad = pad
        self.max_len = max_len

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return logits (B, T, V) for the token after each of ``tgt`` (B, T), from ``src`` (B, S).

        Raises:
            ValueError: if a side is longer than max_len.
        """
        return self.embedding.logits(self.hidden(tgt, self.encode(src)))

    def encode(self, src: Tensor) -> Memory:
        """Read ``src`` (B, S).

        Raises:
            ValueError: if it is longer than max_len.
        """
        positions = self._positions(src, "source")
        mask = (src != self.pad)[:, None, None, :]
        view = View(mask, positions, positions, self.encoder.position)
        views = [(view,)] * len(self.encoder.layers)
        return Memory(self.encoder(self.embedding.src(src), positions, views), mask)

    def hidden(self, tgt: Tensor, memory: Memory) -> Tensor:
        """Return what the logits are made from, (B, T, D), for all of ``tgt`` (B, T) at once.

        Raises:
            ValueError: if ``tgt`` is longer than max_len.
        """
        positions = self._positions(tgt, "target")
        causal = positions[:, None] >= positions[None, :]  # (T, T)
        own = View(causal, positions, positions, self.decoder.position)
        source_positions = torch.arange(memory.mask.size(-1), device=tgt.device)
        source = View(memory.mask, positions, source_positions, memory=memory.states)
        views = [(own, source)] * len(self.decoder.layers)
        return self.decoder(self.embedding.tgt(tgt), positions, views)

    def begin(self, memory: Memory, n_beams: int = 1, length: int | None = None) -> State:
        """Prepare to decode token by token, ``n_beams`` rows for every sentence.

        Args:
            memory: of B sentences.
            n_beams: rows per sentence; those of sentence b are b * n_beams, b * n_beams + 1, ...
            length: most tokens that will be fed; max_len unless given.
        """
        layers = []
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            known = layer.cross_attention.keys_values(memory.states)
            source = Cache.of(*(y.repeat_interleave(n_beams, dim=0) for y in known))
            layers.append((Cache(min(length or self.max_len, self.max_len)), source))
        return State(layers, memory.mask.repeat_interleave(n_beams, dim=0))

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Feed one token per row, ``tokens`` (N,); return the logits (N, V) of the next.

        Raises:
            ValueError: if the state is full.
        """
        if state.length == self.max_len:
            raise ValueError(f"the target has reached max_len ({self.max_len} tokens)")
        positions = torch.arange(state.length + 1, device=tokens.device)
        here = positions[-1:]
        everything = torch.ones(1, state.length + 1, dtype=torch.bool, device=tokens.device)
        source_positions = torch.arange(state.mask.size(-1), device=tokens.device)
        views = [
            (
                View(everything, here, positions, self.decoder.position, cache=own),
                View(state.mask, here, source_positions, known=source.first(state.mask.size(-1))),
            )
            for own, source in state.layers
        ]
        x = self.decoder(self.embedding.tgt(tokens[:, None]), here, views)
        state.length += 1
        return self.embedding.logits(x[:, 0])

    def _positions(self, ids: Tensor, side: str) -> Tensor:
        if ids.size(1) > self.max_len:
            raise ValueError(
                f"a {side} of {ids.size(1)} tokens is longer than model.dims.max_len "
                f"({self.max_len}); raise it, or shorten the text"
            )
        return torch.arange(ids.size(1), device=ids.device)


class State:
    """Where token-by-token decoding stands: N rows, ``length`` tokens fed to each.

    Attributes:
        layers: for each decoder layer, the cache of its own tokens and that of the source.
        mask: True where there is a source token, (N, 1, 1, S).
        length: tokens fed so far.
    """

    def __init__(self, layers: list[tuple[Cache, Cache]], mask: Tensor) -> None:
        self.layers = layers
        self.mask = mask
        self.length = 0

    @property
    def n_rows(self) -> int:
        """Return N."""
        return self.mask.size(0)

    def select(self, rows: Tensor, *, same_sources: bool = False) -> None:
        """Keep ``rows`` (N',) in that order; there are never more of them than before.

        Args:
            rows: which to keep, by their present number.
            same_sources: promises that every row stays with its source sentence, as when beams
                change places, so that nothing has to be done for the source.
        """
        for own, source in self.layers:
            own.select(rows, self.length)
            if not same_sources:
                source.select(rows, self.mask.size(-1))
        if not same_sources:
            self.mask = self.mask.index_select(0, rows)
