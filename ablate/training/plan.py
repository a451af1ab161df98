"""The number of steps of a run, and the batches of each; both are known before it starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ablate.config.experiment import TrainingSpec
from ablate.data.batches import Batch, Batches


def count_steps(training: TrainingSpec, batches: Batches, seed: int) -> int:
    """Return the number of optimizer steps of a run.

    Epochs are rounded down to whole steps, at least one; target tokens are rounded up.
    """
    if training.steps is not None:
        return training.steps
    if training.epochs is not None:
        epochs = range(training.epochs)
        n_batches = sum(batches.of_epoch(seed, epoch).n_per_epoch for epoch in epochs)
        return max(1, n_batches // training.accumulate)
    assert training.target_tokens is not None, "the spec has one of the three"
    n_tokens, n_batches = 0, 0
    for epoch in itertools.count():
        of_epoch = batches.of_epoch(seed, epoch)
        for rows in of_epoch.epoch(seed, epoch):
            n_tokens += of_epoch.count_tokens(rows)
            n_batches += 1
            if n_tokens >= training.target_tokens:
                return -(-n_batches // training.accumulate)
    raise AssertionError("unreachable: there is always a next epoch")


class BatchStream:
    """An endless stream of batches, epoch after epoch, that can start at any batch of any epoch."""

    def __init__(self, batches: Batches, seed: int, epoch: int = 0, index: int = 0) -> None:
        self._batches = batches
        self._seed = seed
        self.epoch = epoch
        self.index = index
        self._begin()

    def _begin(self) -> None:
        self._of_epoch = self._batches.of_epoch(self._seed, self.epoch)
        self._order = self._of_epoch.epoch(self._seed, self.epoch)

    def take(self, n: int) -> Iterator[Batch]:
        """Yield the next ``n`` batches."""
        for _ in range(n):
            if self.index == len(self._order):
                self.epoch, self.index = self.epoch + 1, 0
                self._begin()
            yield self._of_epoch.make(self._order[self.index])
            self.index += 1

    @property
    def finished_epochs(self) -> int:
        """Return the number of finished epochs."""
        return self.epoch + (self.index == len(self._order))
