"""The encoder-decoder Transformer: all target tokens at once, or one after the other.

B batch, S source tokens, T target tokens, N decoded rows, D d_model, V vocabulary. A mask is True
where attention is allowed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.model.stack import Stack
from ablate.model.state import Memory, State
from ablate.parts.attention import AttentionContext, Cache
from ablate.parts.embedding import Embedding
from ablate.parts.feed_forward import AuxLosses
from ablate.parts.residual import Calibration


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
        aux_losses = self._aux_losses(src, losses)
        real = aux_losses.real[:, None, None, :]
        own = AttentionContext(
            stack.mask.allowed(positions, positions, real), positions, positions, stack.position
        )
        contexts = [(own,)] * len(stack.order)
        return Memory(stack(self.embedding.src(src), positions, contexts, aux_losses), real)

    def hidden(self, tgt: Tensor, memory: Memory, losses: list[Tensor] | None = None) -> Tensor:
        """Return what the logits are made from, (B, T, D), for all of ``tgt`` (B, T) at once.

        Raises:
            ValueError: if ``tgt`` is longer than max_len.
        """
        positions, stack = self._positions(tgt, "target"), self.decoder
        aux_losses = self._aux_losses(tgt, losses)
        real = aux_losses.real[:, None, None, :]
        own = AttentionContext(
            stack.mask.allowed(positions, positions, real), positions, positions, stack.position
        )
        source_positions = torch.arange(memory.mask.size(-1), device=tgt.device)
        source = AttentionContext(memory.mask, positions, source_positions, memory=memory.states)
        contexts = [(own, source)] * len(stack.order)
        return stack(self.embedding.tgt(tgt), positions, contexts, aux_losses)

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
        here, positions = state.here, state.seen()
        real = (positions <= here)[None, None, None]
        mask = self.decoder.mask.allowed(here, positions, real)
        source_positions = torch.arange(state.mask.size(-1), device=tokens.device)
        contexts = [
            (
                AttentionContext(mask, here, positions, self.decoder.position, cache=own),
                AttentionContext(
                    state.mask, here, source_positions, known=source.first(state.mask.size(-1))
                ),
            )
            for own, source in state.layers
        ]
        x = self.decoder(self.embedding.tgt(tokens[:, None]), here, contexts)
        state.count()
        return x[:, 0]

    def _aux_losses(self, ids: Tensor, losses: list[Tensor] | None) -> AuxLosses:
        return AuxLosses(ids != self.pad, [] if losses is None else losses)

    def _positions(self, ids: Tensor, side: str) -> Tensor:
        if ids.size(1) > self.max_len:
            raise ValueError(
                f"a {side} of {ids.size(1)} tokens is longer than model.dims.max_len "
                f"({self.max_len}); raise it, or shorten the text"
            )
        return torch.arange(ids.size(1), device=ids.device)
