"""Work on a GPU, captured once and replayed as one CUDA graph.

At the sizes of most ablations a GPU waits for Python: a training step is some thousand small
kernels, a token that is decoded some hundred, each of which costs the host more than the device. A
graph is launched at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch
from torch import Tensor

from ablate.errors import EngineError


class GraphCapturer:
    """Captures work on a device, on a stream of its own and in one pool of memory.

    What is replayed are kernels on the memory that they had: Python does not run again. So the work
    must read and write tensors that stay where they are, and its result is overwritten by the next
    replay.

    A failed capture leaves PyTorch's generator and allocator in a state of which the process does
    not recover. A graph must not be destroyed while others live, since that frees memory that
    matrix products of all graphs of a stream use. So graphs are destroyed all together, by `clear`,
    except one that keeps the pool alive.

    Args:
        device: where; on a CPU a capture is the work itself.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs"; of what happens at
    the end of a graph: https://github.com/pytorch/pytorch/issues/193402.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            self._stream = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()
            self._keeper = self._keep_pool()

    @property
    def n_captures(self) -> int:
        """Return how many captures can be replayed; 0 on a CPU."""
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
        """Return a function that does the work again; nothing is done yet.

        Args:
            name: of the work, for the error.
            work: must have been done before: what a first time allocates and looks up must not be
                captured.

        Raises:
            EngineError: if the work cannot be captured, for example because it asks for a number.
            OutOfMemoryError: of PyTorch, if the device's memory is full.
        """
        if not self._is_cuda:
            return work
        try:
            graph, result = self._capture(work)
        except torch.OutOfMemoryError:  # is a RuntimeError, and no reason to give up on captures
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise EngineError(f"{name} could not be captured as a CUDA graph: {reason}") from error
        self._graphs.append(graph)
        return partial(self._replay, graph, result)

    def clear(self) -> None:
        """Destroy all captures; none of them may be replayed any more."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()

    def _replay(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> Tensor:
        """Replay a graph; as a method, so that all graphs live as long as one may be replayed."""
        graph.replay()
        return result

    def _keep_pool(self) -> torch.cuda.CUDAGraph:
        """Return a graph that keeps the pool alive: one without graphs can never be used again.

        It is also the first that the generator gets to know, which makes a tensor for it. So it is
        not captured in inference mode: a tensor of that mode cannot be written to in any other.
        """
        with torch.inference_mode(False):
            with self._on_stream():
                x = torch.zeros(1, device=self._device)
            return self._capture(lambda: x + 1)[0]

    def _capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with self._on_stream(), _no_garbage_collection():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            except BaseException:
                with suppress(RuntimeError):  # the error at hand says more
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph, result

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Use the stream of the captures, after and before the present stream of the device."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            yield
        present.wait_stream(self._stream)


def generator_of(device: torch.device) -> torch.Generator:
    """Return the generator from which dropout on a device draws."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()  # or there are none
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


@contextmanager
def usual_kernels() -> Iterator[None]:
    """Let PyTorch use its usual kernels, for work that writes no two numbers to one address.

    That work is deterministic. Where a switch asks for deterministic algorithms PyTorch does not
    know so, and takes fifteen kernels on a GPU to write to given places.
    """
    was_enabled = torch.are_deterministic_algorithms_enabled()
    if not was_enabled:  # to turn it off would import PyTorch's compiler
        yield
        return
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled, warn_only=warned_only)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect no garbage: with it a graph might be destroyed during the capture of another."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
