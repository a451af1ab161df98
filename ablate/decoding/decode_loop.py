"""The loop over the tokens of one batch of sentences.

B sentences, S source tokens, K beams per sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.decoding.candidates import candidates
from ablate.decoding.search_state import Hypothesis, SearchSetup
from ablate.errors import EngineError
from ablate.model import Decodable

_SHRINK_BELOW = 0.75  # share of sentences left, below which dropping the others saves more time
_RECAPTURE_BELOW = 0.25  # share of sentences left, below which another capture saves more time
_INITIAL_CAPACITY = 64  # tokens


class DecodeLoop:
    """Generates one token for every sentence per step; sentences that are done leave the batch.

    The model is in evaluation mode; ``src`` (B, S) are ids that end in EOS, padded at the end.
    """

    def __init__(self, setup: SearchSetup, model: Decodable, src: Tensor) -> None:
        self.setup = setup
        self.model = model
        self.limits = setup.limits
        self.max_len = int(self.limits.max_lens.max())
        self.state = model.start(src, self.max_len)
        self.search_state = setup.initial_state
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(len(src))]
        self.sentences = list(range(len(src)))  # indices of those that are still in the batch

    def run(self) -> list[list[Hypothesis]]:
        """Decode until every sentence is done; return the hypotheses of each, best first.

        The host waits for the device once per token.
        """
        while True:
            parents = self._step()
            is_done = self.search_state.is_done().tolist()
            remaining = [b for b, done in enumerate(is_done) if not done]
            n = len(self.sentences)
            # To reorder rows copies them anyway, so that dropping a sentence costs nothing more
            if len(remaining) > (n - 1 if parents is not None else _SHRINK_BELOW * n):
                self._reorder(parents)
            elif not self._drop_done(remaining, parents):
                return self.hypotheses

    def _step(self) -> Tensor | None:
        """Decode one token; return which beams the new ones continue, as `SearchState.advance`."""
        state, step = self.state, self.state.next_position + 1
        last = self.search_state.last_tokens(step)
        last = last[:, : state.n_beams]  # before the first token one row stands for all beams
        hidden = self._forward(last.flatten()).unflatten(0, (-1, state.n_beams))
        log_p, tokens = candidates(
            self.model.output, hidden, self.limits, step, self.setup.n_candidates
        )
        shape = -1, self.setup.n_beams, -1
        parents = self.search_state.advance(log_p.expand(shape), tokens.expand(shape), step)
        if state.n_beams < self.setup.n_beams:
            state.widen(self.setup.n_beams)
        return parents

    def _forward(self, tokens: Tensor) -> Tensor:
        if not self.setup.needs_attention:
            return self.model.feed(tokens, self.state)
        weights: list[Tensor] = []
        handle = self.model.register_cross_attention_hook(weights.append)
        hidden = self.model.feed(tokens, self.state)
        handle.remove()
        # A block that several layers share calls the hook for each; the last call is the last layer
        self.search_state.observe_attention(weights[-1])
        return hidden

    def _reorder(self, parents: Tensor | None, sentences: Tensor | None = None) -> None:
        """Reorder the rows of the state as the beams were, and drop those of other sentences.

        ``parents`` are, for each new beam, the old one that it continues, (B, K); None: itself.
        ``sentences`` are indices in the batch of those to keep; None: all.
        """
        if parents is None and sentences is None:
            return
        rows = torch.arange(self.state.n_rows, device=self.state.mask.device)
        rows = rows.unflatten(0, (-1, self.state.n_beams))
        if parents is not None:
            rows = rows[:, :1] + parents  # (B, K)
        if sentences is not None:
            rows = rows.index_select(0, sentences)
        self.state.select(rows.flatten(), sentences)

    def _drop_done(self, remaining: list[int], parents: Tensor | None = None) -> bool:
        """Store the hypotheses of sentences that are done and drop these; return if any remain.

        The rows may have to be reordered by ``parents`` yet, as in `_reorder`.
        """
        done = sorted(set(range(len(self.sentences))) - set(remaining))
        index = partial(torch.tensor, dtype=torch.long, device=self.state.mask.device)
        finished = self.search_state.select(index(done)).hypotheses()
        for b, hypotheses in zip(done, finished, strict=True):
            self.hypotheses[self.sentences[b]] = hypotheses
        if remaining:
            sentences = index(remaining)
            self._reorder(parents, sentences)
            self.search_state = self.search_state.select(sentences)
            self.limits = self.limits.select(sentences)
        self.sentences = [self.sentences[b] for b in remaining]
        return bool(remaining)


class CapturedDecodeLoop(DecodeLoop):
    """Replays a CUDA graph of two steps, after which every cache is back in its first buffer.

    A capture is valid for one number of sentences and one capacity of the caches. Another one costs
    two eager steps to warm up, because allocations and look-ups of the first execution must not be
    captured. So sentences are dropped only when a quarter remains, and the capacity is doubled.

    The earlier captures of ``capturer`` are destroyed.
    """

    def __init__(
        self, setup: SearchSetup, model: Decodable, src: Tensor, capturer: GraphCapturer
    ) -> None:
        super().__init__(setup, model, src)
        self._capturer = capturer
        self._is_warmed_up = False
        self._replay: Callable[[], Tensor] | None = None

    def run(self) -> list[list[Hypothesis]]:
        """Decode until every sentence is done; return the hypotheses of each, best first.

        The host waits for the device once per two tokens. EngineError if a step cannot be captured.
        """
        self._capturer.clear()
        self._reorder(self._step())
        is_done = self.search_state.is_done()
        while True:
            remaining = [b for b, done in enumerate(is_done.tolist()) if not done]
            if len(remaining) <= _RECAPTURE_BELOW * len(self.sentences):
                if not self._drop_done(remaining):
                    return self.hypotheses
                self._drop_capture()
            is_done = self._two_steps()

    def _two_steps(self) -> Tensor:
        """Decode two tokens, or the last one; return which sentences are done, (B,)."""
        length = self.state.length
        if length + 2 > self.max_len:
            self._reorder(self._step())
            return self.search_state.is_done()
        capacity = self.state.capacity
        if length + 2 > (capacity or 0):
            larger = 2 * capacity if capacity else _INITIAL_CAPACITY
            self.state.fix_buffers(min(self.max_len, larger))
            self._drop_capture()
        if not self._is_warmed_up:
            self._is_warmed_up = True
            before = vars(self.search_state).copy()
            is_done = self._capturer.warm_up(self._in_place)
            for name, value in vars(self.search_state).items():
                if value is not before[name]:
                    kind = type(self.search_state).__name__
                    raise EngineError(
                        f"decoding cannot be captured as a CUDA graph: {kind}.{name} changes from "
                        "token to token and is no tensor; its search should declare a "
                        "capture_blocker"
                    )
            return is_done
        if self._replay is None:
            state = self.state.shallow_copy()
            self._replay = self._capturer.capture("decoding", self._in_place)
            self.state = state  # a capture executes no kernel
        is_done = self._replay()
        self.state.length = length + 2
        return is_done

    def _in_place(self) -> Tensor:
        """Decode two tokens and leave the search state in tensors of unchanged addresses."""
        buffers = self.search_state.tensors()
        for _ in range(2):
            self._reorder(self._step())
        for name, buffer in buffers.items():
            if getattr(self.search_state, name) is not buffer:
                buffer.copy_(getattr(self.search_state, name))
                setattr(self.search_state, name, buffer)
        return self.search_state.is_done()

    def _drop_capture(self) -> None:
        self._is_warmed_up, self._replay = False, None
