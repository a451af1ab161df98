"""Several runs in one process, interleaved: the GPU computes for all while Python serves one.

A small model leaves most of a GPU idle however fast its kernels are launched, because each of them
is small. Kernels of several runs execute concurrently if they are on streams of one process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch

from ablate.cuda_graphs import generator_of

MOST_ON_CUDA = 16
"""Runs: PyTorch has 32 streams, and each run needs one, and one to capture graphs on (source:
c10/cuda/CUDAStream.cpp, kStreamsPerPool)."""


class Interleaver:
    """Runs functions in threads of which only one is active at a time, each in its turn.

    Each has its own state of PyTorch's random generators and, on CUDA, its own stream, so that its
    numbers do not depend on the others.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._order: deque[int] = deque()  # the active function, the next one, and so on
        self._turns: list[threading.Semaphore] = []
        self._of_thread = threading.local()

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run all functions, then raise the first exception."""
        n = len(functions)
        self._order.extend(range(n))
        self._turns = [threading.Semaphore(0) for _ in functions]
        self._wake_next()
        with ThreadPoolExecutor(n) as executor:
            futures = [executor.submit(self._run_one, *pair) for pair in enumerate(functions)]
        for future in futures:
            future.result()

    def yield_turn(self) -> None:
        """Let each of the others have a turn."""
        if len(self._order) == 1:
            return
        number, random_state = self._of_thread.number, self._of_thread.random_state
        random_state.save()
        self._order.rotate(-1)
        self._wake_next()
        self._turns[number].acquire()
        random_state.restore()

    def _run_one(self, number: int, function: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            self._of_thread.number = number
            self._of_thread.random_state = _RandomState(self._device)
            is_cuda = self._device.type == "cuda"
            with torch.cuda.stream(torch.cuda.Stream(self._device)) if is_cuda else nullcontext():
                function()
        finally:
            self._order.remove(number)
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake the thread whose turn it is, and no other."""
        if self._order:
            self._turns[self._order[0]].release()


class _RandomState:
    """The state of PyTorch's generators, for one of several functions that use them.

    On CUDA the generator has a state object for each: captured graphs draw from that of their
    capture, and several of them may be executed at the same time.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu: tuple[torch.Generator, torch.Generator] | None = None
        if device.type == "cuda":
            generator = generator_of(device)
            self._on_gpu = generator, generator.clone_state()
        self.save()
        self.restore()

    def save(self) -> None:
        self._on_cpu = torch.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._on_cpu)
        if self._on_gpu is not None:
            generator, own = self._on_gpu
            generator.graphsafe_set_state(own)
