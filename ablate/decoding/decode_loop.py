"""One batch of sentences on its way from token to token.

B sentences, S source tokens, K beams per sentence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.decoding.candidates import Limits, candidates
from ablate.model import Transformer

if TYPE_CHECKING:
    from ablate.decoding.search import Hypothesis, Search

_MANY = 0.75  # of the sentences: to drop fewer is not worth a copy, unless all are copied anyway
_HALF = 0.5  # of the sentences: to drop fewer is not worth another recording
_ROOM = 32  # tokens, at first


class DecodeLoop:
    """Writes a token for every sentence at a time; sentences that are done leave the batch.

    Args:
        search: what to look for.
        model: in evaluation mode, on the device of ``src``.
        src: ids that end in EOS, padded at the end, (B, S).
        limits: of the sentences.
    """

    def __init__(self, search: Search, model: Transformer, src: Tensor, limits: Limits) -> None:
        self.search = search
        self.model = model
        self.limits = limits
        self.most = int(limits.longest.max())
        self.state = model.begin(model.encode(src), self.most)
        self.search_state = search.start(limits.longest)
        self.found: list[list[Hypothesis]] = [[] for _ in range(len(src))]
        self.places = list(range(len(src)))  # in ``found``, of the sentences still going

    def run(self) -> list[list[Hypothesis]]:
        """Go on until every sentence is done; return the hypotheses of each, best first.

        The host waits for the device once per token.
        """
        while True:
            parents = self._write()
            going = self._going(self.search_state.is_done())
            most = len(self.places) - 1 if parents is not None else _MANY * len(self.places)
            if len(going) > most:
                self._follow(parents)
            elif not self._let_go(going, parents):
                return self.found

    def _write(self) -> Tensor | None:
        """Write one token more; return whom the beams continue."""
        state, n = self.state, self.state.next_position + 1
        last = self.search_state.last(n)[:, : state.n_beams]  # at first all beams are alike
        hidden = self.model.feed(last.flatten(), state).unflatten(0, (-1, state.n_beams))
        log_p, tokens = candidates(
            self.model.embedding, hidden, self.limits, n, self.search.n_candidates
        )
        shape = -1, self.search.n_beams, -1
        parents = self.search_state.advance(log_p.expand(shape), tokens.expand(shape), n)
        if state.n_beams < self.search.n_beams:
            state.widen(self.search.n_beams)
        return parents

    def _follow(self, parents: Tensor | None, sentences: Tensor | None = None) -> None:
        """Let the rows of the state follow their beams, and all but some sentences go."""
        if parents is None and sentences is None:
            return
        rows = torch.arange(self.state.n_rows, device=self.state.mask.device)
        rows = rows.unflatten(0, (-1, self.state.n_beams))
        if parents is not None:
            rows = rows[:, :1] + parents  # (B, K)
        if sentences is not None:
            rows = rows.index_select(0, sentences)
        self.state.select(rows.flatten(), sentences)

    def _let_go(self, going: list[int], parents: Tensor | None = None) -> bool:
        """Keep what was found for the sentences that are done; return whether any others are left.

        Args:
            going: the numbers of the others.
            parents: whom the beams continue, if the rows have yet to follow.
        """
        done = sorted(set(range(len(self.places))) - set(going))
        finished = self.search_state.select(self._numbers(done)).hypotheses()
        for b, hypotheses in zip(done, finished, strict=True):
            self.found[self.places[b]] = hypotheses
        sentences = self._numbers(going)
        if going:
            self._follow(parents, sentences)
            self.search_state = self.search_state.select(sentences)
            self.limits = self.limits.select(sentences)
        self.places = [self.places[b] for b in going]
        return bool(going)

    def _going(self, is_done: Tensor) -> list[int]:
        return [b for b, is_so in enumerate(is_done.tolist()) if not is_so]

    def _numbers(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.state.mask.device)


class CapturedDecodeLoop(DecodeLoop):
    """Writes two tokens at a time, by a recording: after two, rows stand where they stood before.

    A recording holds for the sentences that there are and the room that their tokens have, so
    sentences leave by halves and room is doubled. The first two tokens of each recording are
    written as they are: what a first time allocates and looks up must not be recorded.

    Args:
        search: what to look for.
        model: in evaluation mode, on the device of ``src``.
        src: ids that end in EOS, padded at the end, (B, S).
        limits: of the sentences.
        capturer: of that device.
    """

    def __init__(
        self,
        search: Search,
        model: Transformer,
        src: Tensor,
        limits: Limits,
        capturer: GraphCapturer,
    ) -> None:
        super().__init__(search, model, src, limits)
        self._capturer = capturer
        self._is_warm = False
        self._replay: Callable[[], Tensor] | None = None
        self._can_record = True

    def run(self) -> list[list[Hypothesis]]:
        """Go on until every sentence is done; return the hypotheses of each, best first.

        The host waits for the device once per two tokens.
        """
        self._follow(self._write())
        is_done = self.search_state.is_done()
        while True:
            going = self._going(is_done)
            if len(going) <= _HALF * len(self.places):
                if not self._let_go(going):
                    return self.found
                self._forget()
            is_done = self._two()

    def _two(self) -> Tensor:
        """Write two tokens, or the last one; return which sentences are done, (B,)."""
        length = self.state.length
        if length + 2 > self.most:
            self._follow(self._write())
            return self.search_state.is_done()
        capacity = self.state.capacity
        if length + 2 > (capacity or 0):
            self.state.fix_buffers(min(self.most, 2 * capacity if capacity else _ROOM))
            self._forget()
        if not self._can_record:
            return self._work()
        if not self._is_warm:
            self._is_warm = True
            return self._warm_up()
        if self._replay is None:
            self._record()
        if self._replay is None:
            return self._work()
        is_done = self._replay()
        self.state.length = length + 2
        return is_done

    def _work(self) -> Tensor:
        """Write two tokens on the memory that there is."""
        homes = self.search_state.tensors()
        for _ in range(2):
            self._follow(self._write())
        for name, home in homes.items():
            if getattr(self.search_state, name) is not home:
                home.copy_(getattr(self.search_state, name))
                setattr(self.search_state, name, home)
        return self.search_state.is_done()

    def _warm_up(self) -> Tensor:
        before = vars(self.search_state).copy()
        is_done = self._capturer.warm_up(self._work)
        changed = [
            name for name, value in vars(self.search_state).items() if value is not before[name]
        ]
        if changed:
            self._give_up(
                f"{type(self.search_state).__name__}.{changed[0]} changes and is no tensor"
            )
        return is_done

    def _record(self) -> None:
        before = self.state.shallow_copy(), copy(self.search_state)
        try:
            self._replay = self._capturer.record(self._work)
        except RuntimeError as error:
            self._give_up(str(error).strip().partition("\n")[0])
        self.state, self.search_state = before  # nothing was done yet

    def _forget(self) -> None:
        self._is_warm, self._replay = False, None

    def _give_up(self, reason: str) -> None:
        self._can_record = False
        warnings.warn(f"decoding could not be recorded: {reason}; it goes on eagerly", stacklevel=2)
