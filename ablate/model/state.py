"""What the encoder leaves to the decoder, and where token-by-token decoding stands.

B sentences, S source tokens, T target tokens, N decoded rows, D d_model.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from ablate.parts.attention import Cache, FixedCache


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves to the decoder.

    Attributes:
        states: (B, S, D).
        mask: True where there is a token, (B, 1, 1, S).
    """

    states: Tensor
    mask: Tensor


class State:
    """Where token-by-token decoding stands: N rows, ``length`` tokens fed to each.

    Attributes:
        layers: for each decoder layer, the cache of its own tokens, a row for every beam, and that
            of the source, a row for every sentence.
        mask: True where there is a source token, (N / n_beams, 1, 1, S).
        n_beams: rows of a sentence; those of sentence b are b * n_beams, b * n_beams + 1, ...
        length: tokens fed so far.
        room: for how many tokens everything has its place; None if it is found as they come.
    """

    def __init__(self, layers: list[tuple[Cache, Cache]], mask: Tensor) -> None:
        self.layers = layers
        self.mask = mask
        self.n_beams = 1
        self.length = 0
        self.room: int | None = None
        self._here = mask.new_empty(0, dtype=torch.long)

    @property
    def n_rows(self) -> int:
        """Return N."""
        return self.mask.size(0) * self.n_beams

    @property
    def here(self) -> Tensor:
        """Return the position of the tokens to be fed next, (1,)."""
        if self.room is not None:
            return self._here
        return torch.tensor([self.length], device=self.mask.device)

    def seen(self) -> Tensor:
        """Return the positions of the tokens in the caches, those to be fed next included, (T,).

        Where everything has its place, they are all places, and the mask of a decoder hides those
        to come.
        """
        return torch.arange(self.room or self.length + 1, device=self.mask.device)

    def count(self) -> None:
        """Note that one more token was fed to every row."""
        self.length += 1
        if self.room is not None:
            self._here += 1

    @torch.no_grad()
    def settle(self, room: int) -> None:
        """Give everything its place in memory, for up to ``room`` tokens.

        From then on to feed a token is the same work on the same memory every time, so that it can
        be recorded. At least one token must have been fed.
        """
        self._here = self.here
        self.room = room
        self.layers = [(FixedCache(own, self.length, room), source) for own, source in self.layers]

    def copied(self) -> State:
        """Return a state of its own on the same memory."""
        twin = copy(self)
        twin.layers = [(copy(own), copy(source)) for own, source in self.layers]
        return twin

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
