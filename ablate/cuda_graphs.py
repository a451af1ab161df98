"""Work on a GPU, recorded once and replayed as one CUDA graph.

At the sizes of most ablations a GPU waits for Python: a training step is some thousand small
kernels, a token that is decoded some hundred, each of which costs the host more than the device. A
graph is launched at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def capturer_for(engine: str, device: torch.device) -> GraphCapturer | None:
    """Return what records the tokens of a search where training goes on with ``engine``.

    None for the engines that execute operation by operation.
    """
    return None if engine in ("eager", "data_parallel") else GraphCapturer(device)


class GraphCapturer:
    """Records work on a device, on a stream of its own and in one pool of memory.

    What is replayed are kernels on the memory that they had: Python is not asked again. So the work
    must read and write tensors that stay where they are, and its result is overwritten by the next
    replay.

    Args:
        device: on a CPU a recording is the work itself.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            self._stream = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], Tensor]) -> Tensor:
        """Do the work for the first time, where it will be recorded."""
        if not self._is_cuda:
            return work()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            found = work()
        torch.cuda.current_stream().wait_stream(self._stream)
        found.record_stream(torch.cuda.current_stream())
        return found

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what does the work again; nothing is done yet.

        Raises:
            RuntimeError: if the work does what a graph cannot hold, such as to ask for a number.
        """
        if not self._is_cuda:
            return work
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                found = work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)

        def replay() -> Tensor:
            graph.replay()
            return found

        return replay
