"""Ranks: the processes that train one run together, each on a device of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import Store  # type: ignore[attr-defined]

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for another: longer than the first one takes to evaluate on dev."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of its run."""

    rank: int = 0
    n: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank evaluates, and writes checkpoints and records."""
        return self.rank == 0

    def from_first(self, compute: Callable[[], float]) -> float:
        """Call ``compute`` in the first rank; return its result in all ranks, which call this."""
        if self.n == 1:
            return compute()
        value = torch.tensor(float(compute()) if self.is_first else 0.0, dtype=torch.float64)
        distributed.broadcast(value, src=0)
        return value.item()

    @contextmanager
    def first_rank_first(self) -> Iterator[None]:
        """Run the body in the first rank before the others; all ranks call this together."""
        if not self.is_first:
            self.from_first(lambda: 0.0)
        yield
        if self.is_first:
            self.from_first(lambda: 0.0)


ALONE = Ranks()


@contextmanager
def process_group(device: torch.device, store: Store, rank: int, n: int) -> Iterator[Ranks]:
    """Join the process group of the ``n`` processes that share a ``store``.

    Gradients are summed by NCCL on GPUs and by gloo on a CPU; CPU tensors always go through gloo.
    """
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=n, timeout=TIMEOUT)
    has_failed = True
    try:
        yield Ranks(rank, n)
        has_failed = False
    finally:
        if not (has_failed and is_cuda):  # NCCL would wait for a lost rank
            distributed.destroy_process_group()
