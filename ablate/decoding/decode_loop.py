"""The loop over the tokens of one batch of sentences.

B sentences, S source tokens, K beams per sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.decoding.candidates import candidates
from ablate.decoding.search_state import Hypothesis, SearchSetup
from ablate.errors import EngineError
from ablate.model import Decodable

_KEEP_ABOVE = 0.75  # of the sentences: to drop fewer is worth a copy only if all are copied anyway
_RECAPTURE_BELOW = 0.25  # of the sentences: to drop those that are done is worth another capture
_INITIAL_CAPACITY = 64  # tokens, at first


class DecodeLoop:
    """Writes a token for every sentence at a time; sentences that are done leave the batch.

    Args:
        setup: of the search.
        model: in evaluation mode, on the device of ``src``.
        src: ids that end in EOS, padded at the end, (B, S).
    """

    def __init__(self, setup: SearchSetup, model: Decodable, src: Tensor) -> None:
        self.setup = setup
        self.model = model
        self.limits = setup.limits
        self.max_len = int(self.limits.max_lens.max())
        self.state = model.start(src, self.max_len)
        self.search_state = setup.start
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(len(src))]
        self.sentences = list(range(len(src)))  # those that are not done, by their index

    def run(self) -> list[list[Hypothesis]]:
        """Go on until every sentence is done; return the hypotheses of each, best first.

        The host waits for the device once per token.
        """
        while True:
            parents = self._write()
            left = self._left(self.search_state.is_done())
            n = len(self.sentences)
            if len(left) > (n - 1 if parents is not None else _KEEP_ABOVE * n):
                self._reorder(parents)
            elif not self._drop_all_but(left, parents):
                return self.hypotheses

    def _write(self) -> Tensor | None:
        """Write one token more; return which beams the new ones continue."""
        state, step = self.state, self.state.next_position + 1
        last = self.search_state.last_tokens(step)
        last = last[:, : state.n_beams]  # at first all beams are alike
        hidden = self._feed(last.flatten()).unflatten(0, (-1, state.n_beams))
        log_p, tokens = candidates(
            self.model.output, hidden, self.limits, step, self.setup.n_candidates
        )
        shape = -1, self.setup.n_beams, -1
        parents = self.search_state.advance(log_p.expand(shape), tokens.expand(shape), step)
        if state.n_beams < self.setup.n_beams:
            state.widen(self.setup.n_beams)
        return parents

    def _feed(self, tokens: Tensor) -> Tensor:
        if not self.setup.observes_source:
            return self.model.feed(tokens, self.state)
        observed: list[Tensor] = []
        handle = self.model.observe_source(observed.append)
        hidden = self.model.feed(tokens, self.state)
        handle.remove()
        self.search_state.observe_source(observed[-1])  # a block that layers share calls several
        return hidden

    def _reorder(self, parents: Tensor | None, kept: Tensor | None = None) -> None:
        """Move the rows of the state to the beams that continue them; keep some sentences' alone.

        Args:
            parents: which beams of a sentence its new ones continue, (B, K); None: their own.
            kept: the sentences whose rows to keep, by their number in the batch; None: all.
        """
        if parents is None and kept is None:
            return
        rows = torch.arange(self.state.n_rows, device=self.state.mask.device)
        rows = rows.unflatten(0, (-1, self.state.n_beams))
        if parents is not None:
            rows = rows[:, :1] + parents  # (B, K)
        if kept is not None:
            rows = rows.index_select(0, kept)
        self.state.select(rows.flatten(), kept)

    def _drop_all_but(self, left: list[int], parents: Tensor | None = None) -> bool:
        """Take the hypotheses of the sentences that are done; return whether any others are left.

        Args:
            left: the others, by their number in the batch.
            parents: which beams the present ones continue, if the rows have not been moved yet.
        """
        done = sorted(set(range(len(self.sentences))) - set(left))
        finished = self.search_state.select(self._tensor(done)).hypotheses()
        for b, hypotheses in zip(done, finished, strict=True):
            self.hypotheses[self.sentences[b]] = hypotheses
        if left:
            kept = self._tensor(left)
            self._reorder(parents, kept)
            self.search_state = self.search_state.select(kept)
            self.limits = self.limits.select(kept)
        self.sentences = [self.sentences[b] for b in left]
        return bool(left)

    def _left(self, is_done: Tensor) -> list[int]:
        return [b for b, is_so in enumerate(is_done.tolist()) if not is_so]

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.state.mask.device)


class CapturedDecodeLoop(DecodeLoop):
    """Writes two tokens at a time, by a replay: after two, rows are where they were before.

    A capture holds for the sentences and the room for tokens that there are. To make another takes
    an eager pass before it, so sentences leave only when a quarter is left, and room is doubled:
    the first two tokens of each capture are written eagerly, since what a first time allocates and
    looks up must not be captured.

    Args:
        setup: of the search.
        model: in evaluation mode, on the device of ``src``.
        src: ids that end in EOS, padded at the end, (B, S).
        capturer: of that device; its earlier captures are destroyed.
    """

    def __init__(
        self, setup: SearchSetup, model: Decodable, src: Tensor, capturer: GraphCapturer
    ) -> None:
        super().__init__(setup, model, src)
        self._capturer = capturer
        self._is_warm = False
        self._replay: Callable[[], Tensor] | None = None

    def run(self) -> list[list[Hypothesis]]:
        """Go on until every sentence is done; return the hypotheses of each, best first.

        The host waits for the device once per two tokens.

        Raises:
            EngineError: if the work of a token cannot be captured.
        """
        self._capturer.clear()
        self._reorder(self._write())
        is_done = self.search_state.is_done()
        while True:
            left = self._left(is_done)
            if len(left) <= _RECAPTURE_BELOW * len(self.sentences):
                if not self._drop_all_but(left):
                    return self.hypotheses
                self._drop_capture()
            is_done = self._write_pair()

    def _write_pair(self) -> Tensor:
        """Write two tokens, or the last one; return which sentences are done, (B,)."""
        length = self.state.length
        if length + 2 > self.max_len:
            self._reorder(self._write())
            return self.search_state.is_done()
        capacity = self.state.capacity
        if length + 2 > (capacity or 0):
            wanted = 2 * capacity if capacity else _INITIAL_CAPACITY
            self.state.fix_buffers(min(self.max_len, wanted))
            self._drop_capture()
        if not self._is_warm:
            self._is_warm = True
            return self._warm_up()
        if self._replay is None:
            self._replay = self._capture()
        is_done = self._replay()
        self.state.length = length + 2
        return is_done

    def _work(self) -> Tensor:
        """Write two tokens, with tensors that stay where they are in memory."""
        homes = self.search_state.tensors()
        for _ in range(2):
            self._reorder(self._write())
        for name, home in homes.items():
            if getattr(self.search_state, name) is not home:
                home.copy_(getattr(self.search_state, name))
                setattr(self.search_state, name, home)
        return self.search_state.is_done()

    def _warm_up(self) -> Tensor:
        before = vars(self.search_state).copy()
        is_done = self._capturer.warm_up(self._work)
        for name, value in vars(self.search_state).items():
            if value is not before[name]:
                kind = type(self.search_state).__name__
                raise EngineError(
                    f"decoding cannot be captured as a CUDA graph: {kind}.{name} changes from token"
                    " to token and is no tensor; its search should declare a capture_blocker"
                )
        return is_done

    def _capture(self) -> Callable[[], Tensor]:
        before = self.state.shallow_copy(), copy(self.search_state)
        replay = self._capturer.capture("decoding", self._work)
        self.state, self.search_state = before  # nothing was done yet
        return replay

    def _drop_capture(self) -> None:
        self._is_warm, self._replay = False, None
