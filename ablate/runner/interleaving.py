"""Several runs in one process, taking turns: a GPU works for all while Python serves one.

A small model leaves most of a GPU idle however fast its kernels are launched, because each of them
is small. Kernels of several runs go on side by side when they are on streams of one process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import torch


class Interleaver:
    """Lets functions take turns, each in a thread of its own, of which only one goes on at a time.

    What PyTorch holds once per process each has for itself: random numbers and, on CUDA, a stream.
    So nobody's numbers depend on the company.

    Args:
        device: what they compute on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._changed = threading.Condition()
        self._order: deque[int] = deque()  # whose turn it is, who comes next, and so on
        self._here = threading.local()

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Do all of ``works``; an exception in one does not keep the others from their ends.

        Raises:
            BaseException: the first that any of them has raised.
        """
        self._order.extend(range(len(works)))
        with ThreadPoolExecutor(len(works)) as threads:
            endings = [threads.submit(self._take_part, *pair) for pair in enumerate(works)]
        for ending in endings:
            ending.result()

    def yield_turn(self) -> None:
        """Give everybody else a turn; called by one of the functions."""
        if len(self._order) == 1:
            return
        number, own = self._here.number, self._here.own
        own.keep()
        with self._changed:
            self._order.rotate(-1)
            self._changed.notify_all()
            self._wait(number)
        own.take_up()

    def _take_part(self, number: int, work: Callable[[], None]) -> None:
        with self._changed:
            self._wait(number)
        try:
            self._here.number, self._here.own = number, _Randomness(self._device)
            with _on_a_stream(self._device):
                work()
        finally:
            with self._changed:
                self._order.remove(number)
                self._changed.notify_all()

    def _wait(self, number: int) -> None:
        self._changed.wait_for(lambda: self._order[0] == number)


class _Randomness:
    """The state of PyTorch's generators, of one among several that use them.

    On CUDA the generator is given a state of its own for each: recorded graphs draw from the state
    they were recorded with, and several of them may be at work at the same time.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu: tuple[torch.Generator, torch.Generator] | None = None
        if device.type == "cuda":
            torch.cuda.init()
            generator = torch.cuda.default_generators[device.index or 0]
            self._on_gpu = generator, generator.clone_state()
        self.keep()
        self.take_up()

    def keep(self) -> None:
        """Note how far the generators are."""
        self._on_cpu = torch.get_rng_state()

    def take_up(self) -> None:
        """Go on where `keep` was called."""
        torch.set_rng_state(self._on_cpu)
        if self._on_gpu is not None:
            generator, own = self._on_gpu
            generator.graphsafe_set_state(own)


@contextmanager
def _on_a_stream(device: torch.device) -> Iterator[None]:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        yield
