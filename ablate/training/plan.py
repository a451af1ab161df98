"""How long training is, and which batches each step gets: both fixed before it starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ablate.config.experiment import TrainingSpec
from ablate.data.batches import Batch, Batches


def count_steps(training: TrainingSpec, batches: Batches, seed: int) -> int:
    """Return the number of optimizer steps that ``training`` asks for.

    Steps are taken literally; epochs are rounded down to whole steps, at least one; target
    tokens are reached in the last step.
    """
    if training.steps is not None:
        return training.steps
    if training.epochs is not None:
        return max(1, training.epochs * batches.n_per_epoch // training.accumulate)
    assert training.target_tokens is not None, "the spec asks for one of the three"
    n_tokens, n_batches = 0, 0
    for epoch in itertools.count():
        for rows in batches.epoch(seed, epoch):
            n_tokens += batches.count_tokens(rows)
            n_batches += 1
            if n_tokens >= training.target_tokens:
                return -(-n_batches // training.accumulate)
    raise AssertionError("unreachable: there is always a next epoch")


class Stream:
    """Batches without end, epoch after epoch, from any place on.

    Args:
        batches: of the training split.
        seed: orders them, together with the epoch.
        epoch: where to start.
        index: the batch within that epoch.
    """

    def __init__(self, batches: Batches, seed: int, epoch: int = 0, index: int = 0) -> None:
        self._batches = batches
        self._seed = seed
        self.epoch = epoch
        self.index = index
        self._order = batches.epoch(seed, epoch)

    def take(self, n: int) -> Iterator[Batch]:
        """Yield the next ``n`` batches."""
        for _ in range(n):
            if self.index == len(self._order):
                self.epoch, self.index = self.epoch + 1, 0
                self._order = self._batches.epoch(self._seed, self.epoch)
            yield self._batches.make(self._order[self.index])
            self.index += 1

    @property
    def finished_epochs(self) -> int:
        """Return how many epochs have been seen to the end."""
        return self.epoch + (self.index == len(self._order))
