"""The encoder-decoder Transformer, assembled from a spec.

B batch, S source tokens, T target tokens, N decoded rows, D d_model, H n_heads, V vocabulary.
A mask is True where attention is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from ablate.parts.attention import Attention, Cache, View
from ablate.parts.dims import Dropout, Place, Side, Stage
from ablate.parts.embedding import Embedding, Vocabulary
from ablate.parts.feed_forward import FeedForward, Tally
from ablate.parts.initialisation import Initialisation
from ablate.parts.mask import Mask
from ablate.parts.noise import ElementDropout
from ablate.parts.norm import Norm
from ablate.parts.position import Position
from ablate.parts.residual import Calibration, Residual
from ablate.parts.scaling import Scaling
from ablate.parts.sharing import Sharing
from ablate.registry import Choice, build, refusals
from ablate.spec.experiment import ModelSpec


def assemble(spec: ModelSpec, vocabulary: Vocabulary, pad: int) -> Transformer:
    """Build the Transformer that ``spec`` describes, from the inside out.

    Every block of weights gets parts of its own, except the position encoding: one per stack. The
    weights are drawn from PyTorch's global generator.

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
    initialisation = build(
        Initialisation, spec.initialisation, spec.dims, at="model.initialisation"
    )
    initialisation.initialise(model)
    for stack in (model.encoder, model.decoder):
        for layer in stack.blocks:
            layer.residual.rescale(layer.attentions, layer.feed_forward)
    return model


def _stack(spec: ModelSpec, side: Side) -> Stack:
    stack, dims = spec.stack(side), spec.dims
    depths = {f"n_{s}_layers": spec.stack(s).n_layers for s in ("encoder", "decoder")}
    stage = Stage(side=side, **depths)

    def at(slot: str) -> str:
        return f"model.{side}.{slot}"

    def norm(width: int | None = None) -> Norm:
        wide = dims if width is None else dims.model_copy(update={"d_model": width})
        return build(Norm, stack.norm, wide, at=at("norm"))

    def attention(choice: Choice, slot: str = "attention") -> Attention:
        scaling = build(Scaling, stack.scaling, dims, at=at("scaling"))
        return build(Attention, choice, dims, scaling, stack.dropout, at=at(slot))

    def layer(number: int) -> Layer:
        place = Place(side=side, layer=number, **depths)
        dropout = stack.dropout
        attentions = [attention(stack.attention)]
        if side == "decoder":
            cross = stack.cross_attention or stack.attention
            attentions.append(attention(cross, "cross_attention"))
        feed_forward = build(
            FeedForward, stack.feed_forward, dims, dropout.activation, at=at("feed_forward")
        )
        residual = build(Residual, stack.residual, place, norm, dropout.residual, at=at("residual"))
        with refusals(at("residual")):
            residual.equip(attentions, feed_forward, norm)
        return Layer(attentions, feed_forward, residual)

    order = build(Sharing, stack.sharing, stage, at=at("sharing")).order()
    blocks = {block: layer(order.index(block)) for block in sorted(set(order))}
    return Stack(
        position=build(Position, stack.position, dims, stage, at=at("position")),
        mask=build(Mask, stack.mask, stage, at=at("mask")),
        layers=[blocks[block] for block in order],
        opening=blocks[order[0]].residual.opening(norm),
        closing=blocks[order[-1]].residual.closing(norm),
        dropout=stack.dropout,
    )


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

    def forward(self, x: Tensor, views: Sequence[View], tally: Tally | None) -> Tensor:
        """Send the stream ``x`` through the layer; ``views`` has one for each attention."""
        attend = [_looking(*pair) for pair in zip(self.attentions, views, strict=True)]
        return self.residual(x, *attend, lambda y: self.feed_forward(y, tally))


def _looking(attention: Attention, view: View) -> Callable[[Tensor], Tensor]:
    return lambda x: attention(x, view)


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
        views: Sequence[Sequence[View]],
        tally: Tally | None = None,
    ) -> Tensor:
        """Send embeddings ``x`` (B, T, D) at ``positions`` (T,) through all layers.

        Args:
            x: embeddings.
            positions: where they stand.
            views: for each layer, what each of its attentions may look at.
            tally: takes the losses that parts have of their own.
        """
        x = self.dropout(self.position.embed(self.word_dropout(x), positions))
        x = self.opening(x)
        trails: list[list[Tensor]] = [[] for _ in views[0]]
        for number, (block, of_layer) in enumerate(zip(self.order, views, strict=True)):
            here = [
                replace(view, layer=number, trail=trail)
                for view, trail in zip(of_layer, trails, strict=True)
            ]
            x = self._unless_dropped(self.layers[block](x, here, tally), x)
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

    def forward(self, src: Tensor, tgt: Tensor, losses: list[Tensor] | None = None) -> Tensor:
        """Return logits (B, T, V) for the token after each of ``tgt`` (B, T), from ``src`` (B, S).

        Args:
            src: source ids.
            tgt: target ids, as they are fed.
            losses: takes what parts want added to the objective, (), per token.

        Raises:
            ValueError: if a side is longer than max_len.
        """
        return self.embedding.logits(self.hidden(tgt, self.encode(src, losses), losses))

    def encode(self, src: Tensor, losses: list[Tensor] | None = None) -> Memory:
        """Read ``src`` (B, S).

        Raises:
            ValueError: if it is longer than max_len.
        """
        positions, stack = self._positions(src, "source"), self.encoder
        tally = self._tally(src, losses)
        real = tally.real[:, None, None, :]
        own = View(
            stack.mask.allowed(positions, positions, real), positions, positions, stack.position
        )
        views = [(own,)] * len(stack.order)
        return Memory(stack(self.embedding.src(src), positions, views, tally), real)

    def hidden(self, tgt: Tensor, memory: Memory, losses: list[Tensor] | None = None) -> Tensor:
        """Return what the logits are made from, (B, T, D), for all of ``tgt`` (B, T) at once.

        Raises:
            ValueError: if ``tgt`` is longer than max_len.
        """
        positions, stack = self._positions(tgt, "target"), self.decoder
        tally = self._tally(tgt, losses)
        real = tally.real[:, None, None, :]
        own = View(
            stack.mask.allowed(positions, positions, real), positions, positions, stack.position
        )
        source_positions = torch.arange(memory.mask.size(-1), device=tgt.device)
        source = View(memory.mask, positions, source_positions, memory=memory.states)
        views = [(own, source)] * len(stack.order)
        return stack(self.embedding.tgt(tgt), positions, views, tally)

    def calibrate(self, src: Tensor, tgt: Tensor) -> None:
        """Make the profiling pass, on one batch, that some wirings ask for before training."""
        stacks = [s for s in (self.encoder, self.decoder) if s.needs_calibration]
        if not stacks:
            return
        for stack in stacks:
            stack.calibrate(Calibration())
        with torch.no_grad():
            self(src, tgt)
        for stack in stacks:
            stack.calibrate(None)

    @torch.no_grad()
    def begin(self, memory: Memory, length: int | None = None) -> State:
        """Prepare to decode token by token, one row for every sentence, without gradients.

        Args:
            memory: of B sentences.
            length: most tokens that will be fed; max_len unless given.
        """
        layers = []
        for block in self.decoder.order:
            attention = self.decoder.blocks[block].cross_attention
            assert attention is not None, "every decoder layer has one"
            source = Cache.of(*attention.keys_values(memory.states))
            layers.append((Cache(min(length or self.max_len, self.max_len)), source))
        return State(layers, memory.mask)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Feed one token per row, ``tokens`` (N,); return the logits (N, V) of the next.

        Raises:
            ValueError: if the state is full.
        """
        return self.embedding.logits(self.feed(tokens, state))

    @torch.no_grad()
    def feed(self, tokens: Tensor, state: State) -> Tensor:
        """Feed one token per row, ``tokens`` (N,); return what the logits are made from, (N, D).

        Raises:
            ValueError: if the state is full.
        """
        if state.length == self.max_len:
            raise ValueError(f"the target has reached max_len ({self.max_len} tokens)")
        positions = torch.arange(state.length + 1, device=tokens.device)
        here = positions[-1:]
        real = torch.ones(1, 1, 1, state.length + 1, dtype=torch.bool, device=tokens.device)
        mask = self.decoder.mask.allowed(here, positions, real)
        source_positions = torch.arange(state.mask.size(-1), device=tokens.device)
        views = [
            (
                View(mask, here, positions, self.decoder.position, cache=own),
                View(state.mask, here, source_positions, known=source.first(state.mask.size(-1))),
            )
            for own, source in state.layers
        ]
        x = self.decoder(self.embedding.tgt(tokens[:, None]), here, views)
        state.length += 1
        return x[:, 0]

    def _tally(self, ids: Tensor, losses: list[Tensor] | None) -> Tally:
        return Tally(ids != self.pad, [] if losses is None else losses)

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
        layers: for each decoder layer, the cache of its own tokens, a row for every beam, and that
            of the source, a row for every sentence.
        mask: True where there is a source token, (N / n_beams, 1, 1, S).
        n_beams: rows of a sentence; those of sentence b are b * n_beams, b * n_beams + 1, ...
        length: tokens fed so far.
    """

    def __init__(self, layers: list[tuple[Cache, Cache]], mask: Tensor) -> None:
        self.layers = layers
        self.mask = mask
        self.n_beams = 1
        self.length = 0

    @property
    def n_rows(self) -> int:
        """Return N."""
        return self.mask.size(0) * self.n_beams

    @torch.no_grad()
    def widen(self, n_beams: int) -> None:
        """Give every row ``n_beams`` - 1 copies, next to it."""
        rows = torch.arange(self.n_rows, device=self.mask.device).repeat_interleave(n_beams)
        self.select(rows)
        self.n_beams *= n_beams

    @torch.no_grad()
    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep some rows in a new order, some perhaps several times.

        Args:
            rows: by their present number, those of one sentence next to each other.
            sentences: whose rows they are, in that order; None if those are all, as they were.
        """
        for own, source in self.layers:
            own.select(rows, self.length)
            if sentences is not None:
                source.select(sentences, self.mask.size(-1))
        if sentences is not None:
            self.mask = self.mask.index_select(0, sentences)
