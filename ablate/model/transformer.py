"""The encoder-decoder Transformer, for whole targets and for token-by-token decoding.

B batch, S source tokens, T target tokens, N decoded rows, D d_model, V vocabulary. A mask is True
where attention is allowed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ablate.model.decodable import Decodable, DecoderState, Memory, Output
from ablate.model.stack import Stack
from ablate.parts.attention import AttentionContext, KVCache
from ablate.parts.embedding import Embedding
from ablate.parts.feed_forward import AuxLosses, FeedForward
from ablate.parts.residual import Calibration


class Transformer(Decodable):
    """Source and target ids in, logits out."""

    def __init__(
        self, embedding: Embedding, encoder: Stack, decoder: Stack, *, pad: int, max_len: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.encoder = encoder
        self.decoder = decoder
        self.pad = pad
        self.max_len = max_len
        self._feed_forwards = [m for m in self.modules() if isinstance(m, FeedForward)]

    def forward(self, src: Tensor, tgt: Tensor, losses: list[Tensor] | None = None) -> Tensor:
        """Return logits (B, T, V) for the token after each of ``tgt`` (B, T), from ``src`` (B, S).

        ``losses`` receives the auxiliary losses of parts, (), per token.

        Raises:
            ValueError: if a side is longer than max_len.
        """
        return self.embedding.logits(self.hidden(tgt, self.encode(src, losses), losses))

    def encode(self, src: Tensor, losses: list[Tensor] | None = None) -> Memory:
        """Encode ``src`` (B, S); raise ValueError if it is longer than max_len."""
        positions, stack = self._positions(src, "source"), self.encoder
        aux_losses = self._aux_losses(src, losses)
        is_token = aux_losses.is_token[:, None, None, :]
        contexts = [
            (AttentionContext(mask, positions, positions, stack.position),)
            for mask in stack.masks(positions, positions, is_token)
        ]
        x = stack.word_dropout(src, self.embedding.src)
        return Memory(stack(x, positions, contexts, aux_losses), is_token)

    def hidden(self, tgt: Tensor, memory: Memory, losses: list[Tensor] | None = None) -> Tensor:
        """Return the last hidden states (B, T, D) for all of ``tgt`` (B, T), up to max_len."""
        positions, stack = self._positions(tgt, "target"), self.decoder
        aux_losses = self._aux_losses(tgt, losses)
        is_token = aux_losses.is_token[:, None, None, :]
        source_positions = torch.arange(memory.mask.size(-1), device=tgt.device)
        source = AttentionContext(memory.mask, positions, source_positions, memory=memory.states)
        contexts = [
            (AttentionContext(mask, positions, positions, stack.position), source)
            for mask in stack.masks(positions, positions, is_token)
        ]
        x = stack.word_dropout(tgt, self.embedding.tgt)
        return stack(x, positions, contexts, aux_losses)

    def calibrate(self, src: Tensor, tgt: Tensor) -> None:
        """Run the profiling pass, on one batch, that some residual schemes require.

        What other parts keep from batch to batch stays as it was.
        """
        stacks = [s for s in (self.encoder, self.decoder) if s.needs_calibration]
        if not stacks:
            return
        for stack in stacks:
            stack.calibrate(Calibration())
        buffers = [(buffer, buffer.clone()) for buffer in self.buffers()]
        with torch.no_grad():
            self.hidden(tgt, self.encode(src))  # logits of a whole batch may not fit into memory
            for buffer, content in buffers:
                buffer.copy_(content)
        for stack in stacks:
            stack.calibrate(None)

    def after_update(self) -> None:
        """Let feed-forwards change what is not trained by gradients, after every update."""
        for feed_forward in self._feed_forwards:
            feed_forward.after_update()

    @property
    def output(self) -> Output:
        return self.embedding

    @property
    def cache_width(self) -> int:
        return self.embedding.tgt_table.d_model * len(self.decoder.order)

    @torch.no_grad()
    def start(self, src: Tensor, length: int) -> DecoderState:
        memory, layers = self.encode(src), []
        for block in self.decoder.order:
            attention = self.decoder.blocks[block].cross_attention
            assert attention is not None, "every decoder layer has one"
            source = KVCache.of(*attention.keys_values(memory.states))
            layers.append((KVCache(length), source))
        return DecoderState(layers, memory.mask)

    def register_cross_attention_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        attention = self.decoder.blocks[self.decoder.order[-1]].cross_attention
        assert attention is not None, "every decoder layer has one"
        return attention.dropout.register_forward_pre_hook(
            lambda _, args: hook(args[0].mean(dim=1))
        )

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed one token per row as `feed` does; return the logits (N, V) of the next."""
        return self.embedding.logits(self.feed(tokens, state))

    @torch.no_grad()
    def feed(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """See `Decodable`; ValueError if the state is full."""
        if state.length == self.max_len:
            raise ValueError(f"the target has reached max_len ({self.max_len} tokens)")
        position, key_positions = state.next_position, state.key_positions()
        is_fed = (key_positions <= position)[None, None, None]
        masks = self.decoder.masks(position, key_positions, is_fed)
        n_source = state.mask.size(-1)
        source_positions = torch.arange(n_source, device=tokens.device)
        contexts = [
            (
                AttentionContext(
                    mask, position, key_positions, self.decoder.position, cache=target
                ),
                AttentionContext(
                    state.mask, position, source_positions, memory_kv=source.first(n_source)
                ),
            )
            for mask, (target, source) in zip(masks, state.layers, strict=True)
        ]
        x = self.decoder(self.embedding.tgt(tokens[:, None]), position, contexts)
        state.count_token()
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
