"""Forward and backward recorded once per shape of a batch, then replayed as one CUDA graph.

At the sizes of most ablations a GPU waits for Python: a step is some thousand small kernels, each
of which costs the host more than the device. A graph is launched at once.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.recording import Recorder
from ablate.training.engines.contract import Engine
from ablate.training.gradient import Load, add_gradient
from ablate.training.step import Recipe

_MOST = 512  # recordings; each takes some MiB of the device


class Graph(Engine):
    """Replays what it has recorded; a shape is run as it is once, and recorded when it comes back.

    Batches of one epoch come back in the next with the same numbers of rows and target tokens (see
    `Batches`), so there are about as many recordings as there are batches of distinct lengths. All
    share one pool of memory. Clipping and the update follow outside the graph, in a few large
    kernels, so that every optimizer will do.

    On a CPU, where there is nothing to record, the same steps are taken on the same buffers.

    Attributes:
        n_recorded: shapes that have been recorded.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
    """

    name = "graph"
    keeps_gradients = True

    def __init__(
        self, model: Transformer, recipe: Recipe, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, recipe, optimizer)
        self.n_recorded = 0
        self._slots: dict[tuple[int, int, int], Slot] = {}
        self._made: Recorder | None = None

    def add_gradient(self, batch: Batch, n_units: int) -> Tensor:
        if self.note:
            return add_gradient(self.model, self.recipe, Load.of(batch, n_units))
        slot = self._slot(batch)
        slot.fill(batch, n_units)
        if slot.replay is None:
            work = partial(add_gradient, self.model, self.recipe, slot.load)
            if not slot.has_run or self.n_recorded == _MOST:
                slot.has_run = True  # what a first time allocates and looks up must not be recorded
                return self._recorder(batch).warm_up(work)
            try:
                slot.replay = self._record(batch, work)
            except RuntimeError as error:
                self._give_up(error)
                return self.add_gradient(batch, n_units)
        return slot.replay().clone()

    def _recorder(self, batch: Batch) -> Recorder:
        if self._made is None:
            self._made = Recorder(batch.src.device)
        return self._made

    def _record(self, batch: Batch, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        began = time.perf_counter()
        try:
            replay = self._recorder(batch).record(work)
            self.n_recorded += 1
            return replay
        finally:
            self.seconds_preparing += time.perf_counter() - began

    def _slot(self, batch: Batch) -> Slot:
        n_rows, n_src = batch.src.shape
        shape = n_rows, min(rounded(n_src), self.model.max_len), batch.tgt_in.size(1)
        if shape not in self._slots:
            self._slots[shape] = Slot(shape, batch.src.device)
        return self._slots[shape]

    def _give_up(self, error: RuntimeError) -> None:
        reason = str(error).strip().partition("\n")[0]
        self.note = f"the step could not be recorded: {reason}"
        warnings.warn(f"{self.note}; training goes on eagerly", stacklevel=2)


def rounded(n: int) -> int:
    """Return the length that sources of ``n`` tokens are padded to: few shapes, little padding.

    A multiple of 2 up to 32 tokens, of 4 up to 64, and so on.
    """
    step = 2
    while n > 16 * step:
        step *= 2
    return -(-n // step) * step


class Slot:
    """The buffers of one shape, and the recording that reads them.

    Args:
        shape: B, S and T.
        device: where.

    Attributes:
        load: the buffers.
        has_run: whether the shape has been met before.
        replay: computes what was recorded; None before.
    """

    def __init__(self, shape: tuple[int, int, int], device: torch.device) -> None:
        n_rows, n_src, n_tgt = shape

        def ids(n: int) -> Tensor:
            return torch.full((n_rows, n), PAD, device=device)

        def number() -> Tensor:
            return torch.ones((), device=device)

        self.load = Load(ids(n_src), ids(n_tgt), ids(n_tgt), number(), number())
        self.has_run = False
        self.replay: Callable[[], Tensor] | None = None

    def fill(self, batch: Batch, n_units: int) -> None:
        """Write a batch into the buffers; the source is filled up with padding."""
        n_src = batch.src.size(1)
        self.load.src[:, :n_src] = batch.src
        self.load.src[:, n_src:] = PAD
        self.load.tgt_in.copy_(batch.tgt_in, non_blocking=True)
        self.load.tgt_out.copy_(batch.tgt_out, non_blocking=True)
        for buffer, n in ((self.load.n_tokens, batch.n_tokens), (self.load.n_units, n_units)):
            assert isinstance(buffer, Tensor), "they were made here"
            buffer.fill_(n)
