"""Work on a GPU, captured once and replayed as one CUDA graph.

At the sizes of most ablations a GPU waits for Python: a training step consists of about a thousand
small kernels, the decoding of a token of about a hundred, and each takes longer to launch than to
run. A graph is launched at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch
from torch import Tensor

from ablate.errors import EngineError, first_line


class GraphCapturer:
    """Captures work on a device, on a stream of its own and in one pool of memory.

    A replay runs the captured kernels on the same memory, and no Python code: the work must read
    and write tensors that stay where they are, and every replay overwrites the last result. On a
    CPU a capture is the work itself.

    A failed capture leaves PyTorch's generator and allocator in a state from which the process
    cannot recover. Destroying a graph frees memory that the matrix products of all graphs on its
    stream use. So `clear` destroys all graphs together, except one that keeps the pool alive.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs"; on the destruction
    of graphs: https://github.com/pytorch/pytorch/issues/193402.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            self._stream = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()
            # Keeps the pool alive: one without graphs cannot be used again. For its first graph the
            # generator makes a tensor, which only inference mode could write to if made in it
            with torch.inference_mode(False):
                with self._on_stream():
                    x = torch.zeros(1, device=device)
                self._pool_graph, _ = self._capture(lambda: x + 1)

    @property
    def n_captures(self) -> int:
        """How many captures can be replayed; 0 on a CPU."""
        return len(self._graphs)

    def warm_up(self, work: Callable[[], Tensor]) -> Tensor:
        """Do the work for the first time, on the stream on which it will be captured."""
        if not self._is_cuda:
            return work()
        with self._on_stream():
            result = work()
        result.record_stream(torch.cuda.current_stream(self._device))
        return result

    def capture(self, name: str, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that does the work; this call does not.

        The work must have been done before (`warm_up`), whose allocations must not be captured.
        What cannot be captured is an `EngineError` with the ``name``; lack of memory stays what it
        is.
        """
        if not self._is_cuda:
            return work
        self._give_back_cached_memory()
        try:
            graph, result = self._capture(work)
        except torch.OutOfMemoryError:  # captures may work with smaller batches
            raise
        except Exception as error:
            text = f"{name} could not be captured as a CUDA graph: {first_line(error)}"
            raise EngineError(text) from error
        self._graphs.append(graph)
        return partial(self._replay, graph, result)

    def clear(self) -> None:
        """Destroy all captures, which must not be replayed any more."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()

    def _give_back_cached_memory(self) -> None:
        """Give back what PyTorch holds for reuse, if less than that is free: a capture cannot.

        Source: c10/cuda/CUDACachingAllocator.cpp, malloc; so does `torch.cuda.graph` every time.
        """
        device = self._device
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if torch.cuda.mem_get_info(device)[0] < cached:
            torch.cuda.empty_cache()

    def _replay(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> Tensor:
        """Replay a graph; a method, because all graphs must live while one may be replayed."""
        graph.replay()
        return result

    def _capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        was_enabled = gc.isenabled()
        gc.disable()  # it might destroy a graph during the capture of another
        try:
            with self._on_stream():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = work()
                except BaseException:
                    with suppress(RuntimeError):  # the first error says more
                        graph.capture_end()
                    raise
                graph.capture_end()
        finally:
            if was_enabled:
                gc.enable()
        return graph, result

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Use the capture stream, which the device's current stream waits for, and vice versa."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)


def generator_of(device: torch.device) -> torch.Generator:
    """Return the generator of dropout on a device."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()  # creates the generators
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


@contextmanager
def usual_kernels() -> Iterator[None]:
    """Use PyTorch's usual kernels, for work that writes to every address once: it is deterministic.

    The deterministic algorithms for indexed writes take fifteen kernels on a GPU.
    """
    if not torch.are_deterministic_algorithms_enabled():  # disabling would import the compiler
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
