"""Several runs in one process, interleaved: a GPU works for all while Python serves one.

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

from ablate.cuda_graphs import generator_of
from ablate.errors import EngineError

MOST_ON_CUDA = 16
"""Runs: PyTorch has 32 streams, and each run needs one, and one to capture graphs on (source:
c10/cuda/CUDAStream.cpp, kStreamsPerPool)."""


class Interleaver:
    """Runs functions in threads of which only one is active at a time, each in its turn.

    What PyTorch has once per process each function has for itself: random numbers and, on CUDA, a
    stream. So the numbers of a function do not depend on the others.

    Args:
        device: what they compute on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._order: deque[int] = deque()  # the active function, the next one, and so on
        self._turns: list[threading.Semaphore] = []
        self._failure: EngineError | None = None
        self._of_thread = threading.local()

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all of ``works``; an exception in one does not end the others.

        An `EngineError` does: the process cannot go on, and so the others end with one too.

        Raises:
            BaseException: the first that any of them has raised.
            ValueError: if there are too many for a GPU.
        """
        if self._device.type == "cuda" and len(works) > MOST_ON_CUDA:
            raise ValueError(f"{len(works)} runs in one process; a GPU takes {MOST_ON_CUDA}")
        self._order.extend(range(len(works)))
        self._turns = [threading.Semaphore(0) for _ in works]
        self._wake_next()
        with ThreadPoolExecutor(len(works)) as threads:
            endings = [threads.submit(self._run_one, *pair) for pair in enumerate(works)]
        for ending in endings:
            ending.result()

    def yield_turn(self) -> None:
        """Give each of the others a turn; called by one of the functions.

        Raises:
            EngineError: if one of the others has ended with one.
        """
        if len(self._order) == 1:
            self._check_process()
            return
        number, own = self._of_thread.number, self._of_thread.own
        own.keep()
        self._order.rotate(-1)
        self._wake_next()
        self._turns[number].acquire()
        own.restore()
        self._check_process()

    def _run_one(self, number: int, work: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            self._check_process()
            self._of_thread.number, self._of_thread.own = number, _RandomState(self._device)
            with _on_a_stream(self._device):
                work()
        except EngineError as error:
            self._failure = self._failure or error
            raise
        finally:
            self._order.remove(number)
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake the thread whose turn it is, and no other."""
        if self._order:
            self._turns[self._order[0]].release()

    def _check_process(self) -> None:
        if self._failure is not None:
            raise EngineError(
                f"another run in the same process ended it: {self._failure}", is_own=False
            )


class _RandomState:
    """The state of PyTorch's generators, for one of several functions that use them.

    On CUDA the generator has a state object for each: captured graphs draw from the state that was
    current at their capture, and several of them may be executed at the same time.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu: tuple[torch.Generator, torch.Generator] | None = None
        if device.type == "cuda":
            generator = generator_of(device)
            self._on_gpu = generator, generator.clone_state()
        self.keep()
        self.restore()

    def keep(self) -> None:
        """Keep the present state."""
        self._on_cpu = torch.get_rng_state()

    def restore(self) -> None:
        """Go on from the state that was kept."""
        torch.set_rng_state(self._on_cpu)
        if self._on_gpu is not None:
            generator, own = self._on_gpu
            generator.graphsafe_set_state(own)


@contextmanager
def _on_a_stream(device: torch.device) -> Iterator[None]:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        yield
