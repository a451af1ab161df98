"""The machine: its replacements of functions of `torch.cuda`, and the behaviour of its tensors."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fake_cuda.graphs import PRODUCTS, Allocator, Generator, GeneratorState, Graph
from tests.fake_cuda.streams import Stream, Use, computes, merge, tensors, written

STREAMS = 32
MIB = 2**20
GRAPH_MIB = 16
"""What a capture reserves; nothing of it counts as allocated."""

_TO_HOST = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")


class CudaMachine:
    """CUDA devices, one of which has all tensors; a context manager that patches PyTorch.

    Args:
        device: where the tensors are; not the current device unless its index is 0.
        n_devices: how many there are.

    Attributes:
        n_captures: that have succeeded; `n_replays` likewise.
        n_launches: operations that were started one by one.
        n_waits: how often the host has waited for the device.
        live_graphs: graphs that have not been destroyed.
    """

    def __init__(self, device: str = "cuda:1", n_devices: int = 2) -> None:
        self.device = torch.device(device)
        self.n_captures = self.n_replays = self.n_launches = self.n_waits = self.live_graphs = 0
        self.allocator = Allocator()
        self.host: dict[Stream, int] = {}  # what the host has waited for
        self.workspaces: dict[Stream, object] = {}
        self.default_generators = tuple(
            Generator(self, GeneratorState(torch.Generator().manual_seed(index).get_state()))
            for index in range(n_devices)
        )
        self._streams = [
            [Stream(self, index, number) for number in range(1 + STREAMS)]
            for index in range(n_devices)
        ]
        self.n_dealt = [0] * n_devices
        self._pools = itertools.count(1)
        self._here = threading.local()
        self._uses: dict[int, Use] = {}

    def __enter__(self) -> CudaMachine:
        run, device = threading.Thread.run, torch.device("cuda")

        def run_here(thread: threading.Thread) -> None:
            with _Functions(self), _Kernels(self):
                run(thread)

        self._stack = ExitStack()
        for owner, name, value in (
            *((torch.cuda, name, getattr(self, name)) for name in _TORCH_CUDA),
            (torch.cuda, "CUDAGraph", partial(Graph, self)),
            (torch.cuda, "Stream", self.new_stream),
            (Tensor, "record_stream", _record_stream),
            (torch.accelerator, "current_accelerator", lambda check_available=False: device),
            (torch.accelerator, "current_stream", self.current_stream),
            (threading.Thread, "run", run_here),
        ):
            self._stack.enter_context(patch.object(owner, name, value))
        self._stack.enter_context(_Functions(self))
        self._stack.enter_context(_Kernels(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def init(self) -> None:
        return

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def device_count(self) -> int:
        return len(self._streams)

    def current_device(self) -> int:
        return getattr(self._here, "device", 0)

    def new_stream(self, device: Any = None, priority: int = 0) -> Stream:
        index = self._index(device)
        number = 1 + self.n_dealt[index] % STREAMS
        self.n_dealt[index] += 1
        return self._streams[index][number]

    def default_stream(self, device: Any = None) -> Stream:
        return self._streams[self._index(device)][0]

    def current_stream(self, device: Any = None) -> Stream:
        index = self._index(device)
        return self._current().get(index, self._streams[index][0])

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        index, before = stream.device.index or 0, self.current_device()
        previous = self.current_stream(index)
        self._current()[index], self._here.device = stream, index
        try:
            yield
        finally:
            self._current()[index], self._here.device = previous, before

    def graph_pool_handle(self) -> tuple[int, int]:
        return 0, next(self._pools)

    def is_current_stream_capturing(self) -> bool:
        return self.current_stream().is_capturing()

    def synchronize(self, device: Any = None) -> None:
        self.assert_not_capturing("to synchronize")
        for stream in self._streams[self._index(device)]:
            self.wait_on_host(stream)

    def empty_cache(self) -> None:
        self.assert_not_capturing("to give memory back")
        self.allocator.give_back()

    def manual_seed(self, seed: int) -> None:
        self.default_generators[self.current_device()].manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return 60_000 * MIB, 80_000 * MIB

    def memory_allocated(self, device: Any = None) -> int:
        return MIB if self._index(device) == self.device.index else 0

    max_memory_allocated = memory_allocated

    def memory_reserved(self, device: Any = None) -> int:
        of_graphs = GRAPH_MIB * MIB * self.live_graphs
        return 2 * MIB + of_graphs if self._index(device) == self.device.index else 0

    max_memory_reserved = memory_reserved

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        return

    def streams(self) -> Iterator[Stream]:
        return itertools.chain.from_iterable(self._streams)

    def wait_on_host(self, stream: Stream) -> None:
        self.n_waits += 1
        merge(self.host, stream.waited_for)

    def assert_not_capturing(self, what: str = "to ask or set the generator") -> None:
        graph = self.current_stream(self.device).graph
        if graph is not None:
            graph.refuse(what)

    def launch(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation as the device would."""
        stream = self.current_stream(self.device)
        if stream.graph is not None:
            return stream.graph.record(func, types, args, kwargs)
        if func._schema.name in PRODUCTS:
            self.workspaces.setdefault(stream, object())
        self.n_launches += computes(func)
        stream.launch()
        if func._schema.name == "aten::_local_scalar_dense":
            self.wait_on_host(stream)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            result = func(*args, **kwargs)
        else:
            state = self.default_generators[self.device.index or 0].state
            if state.is_capturing:
                raise RuntimeError(
                    "Offset increment outside graph capture encountered unexpectedly."
                )
            with state.drawing():
                result = func(*args, **kwargs)
        if computes(func):
            reads, writes = tensors(args, kwargs), written(func, args, kwargs, result)
            self.check_order(stream, reads, writes)
        return result

    def check_order(
        self, stream: Stream, reads: Iterable[Tensor], writes: Iterable[Tensor]
    ) -> None:
        """Refuse to use memory that another stream may still be writing, or reading."""
        for x in reads:
            self._use(x).touch(stream, is_write=False)
        for x in writes:
            self._use(x).touch(stream, is_write=True)

    def _use(self, x: Tensor) -> Use:
        storage = x.untyped_storage()
        use = self._uses.get(storage._cdata)
        if use is None or use.storage.expired():
            use = self._uses[storage._cdata] = Use(StorageWeakRef(storage))
        return use

    def _current(self) -> dict[int, Stream]:
        streams: dict[int, Stream] = self._here.__dict__.setdefault("streams", {})
        return streams

    def _index(self, device: Any) -> int:
        index = torch.device(device).index if isinstance(device, str) else device
        if isinstance(device, torch.device):
            index = device.index
        return self.current_device() if index is None else int(index)


_TORCH_CUDA = (
    "current_stream default_stream stream graph_pool_handle synchronize empty_cache init "
    "is_available is_initialized is_bf16_supported is_current_stream_capturing device_count "
    "current_device default_generators manual_seed manual_seed_all mem_get_info memory_allocated "
    "max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats"
).split()


class _Functions(TorchFunctionMode):
    """Makes CPU tensors report the machine's device, and creates and moves tensors on the CPU."""

    def __init__(self, machine: CudaMachine) -> None:
        super().__init__()
        self._machine = machine
        self._properties = {
            Tensor.device: machine.device,
            Tensor.is_cuda: True,
            Tensor.is_cpu: False,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, owner = getattr(func, "__name__", ""), getattr(func, "__self__", None)
        if name == "__get__" and owner in self._properties:
            return self._properties[owner]
        if name in _TO_HOST:
            self._machine.assert_not_capturing("to copy numbers to the host")
            if name in ("tolist", "cpu", "numpy"):
                self._machine.wait_on_host(self._machine.current_stream(self._machine.device))
        if name == "pin_memory":
            return args[0]
        kwargs = kwargs or {}
        if func is not torch.device:
            args = [_on_cpu(x) for x in args]
            kwargs = {key: _on_cpu(x) for key, x in kwargs.items()}
        return func(*args, **kwargs)


class _Kernels(TorchDispatchMode):
    def __init__(self, machine: CudaMachine) -> None:
        super().__init__()
        self._machine = machine

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._machine.launch(func, types, args, kwargs or {})


def _record_stream(x: Tensor, stream: Stream) -> None:
    assert stream.device == x.device


def _on_cpu(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == "cuda":
        return torch.device("cpu")
    return x
