"""Generators, pools of memory and graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from tests.fake_cuda.streams import computes, tensors, written
from tests.tape import Tape

if TYPE_CHECKING:
    from tests.fake_cuda.machine import CudaMachine

_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation")


class GeneratorState:
    """The state of a generator: its next random numbers, and its captures."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        self.is_capturing = False
        self.n_graphs = 0
        self.is_inference = False  # whether the seed on the device is a tensor of inference mode

    def register(self) -> None:
        if self.n_graphs == 0:
            self.is_inference = torch.is_inference_mode_enabled()
        self.n_graphs += 1

    def fill(self) -> None:
        if self.is_inference and not torch.is_inference_mode_enabled():
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode")

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Have the CPU's generator draw these numbers."""
        of_host = torch.get_rng_state()
        torch.set_rng_state(self.numbers)
        try:
            yield
        finally:
            self.numbers = torch.get_rng_state()
            torch.set_rng_state(of_host)


class Generator:
    """The default generator of a device, or a state to give it."""

    def __init__(self, machine: CudaMachine, state: GeneratorState) -> None:
        self.machine = machine
        self.state = state

    def manual_seed(self, seed: int) -> None:
        self.machine.assert_not_capturing()
        self.state.numbers = torch.Generator().manual_seed(seed).get_state()

    def get_state(self) -> Tensor:
        self.machine.assert_not_capturing()
        return self.state.numbers.clone()

    def set_state(self, numbers: Tensor) -> None:
        self.machine.assert_not_capturing()
        self.state.numbers = numbers.clone()

    def clone_state(self) -> Generator:
        return Generator(self.machine, GeneratorState(self.state.numbers.clone()))

    def graphsafe_set_state(self, other: Generator) -> None:
        self.state = other.state


class Allocator:
    """Pools of memory, by their handles."""

    def __init__(self) -> None:
        self.use_count: dict[Any, int] = {}
        self.underway: list[Any] = []

    def begin(self, pool: Any) -> None:
        if self.use_count.get(pool, 1) <= 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.use_count[pool] = self.use_count.get(pool, 0) + 1
        if pool in self.underway:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.underway.append(pool)

    def end(self, pool: Any) -> None:
        self.underway.remove(pool)

    def give_back(self) -> None:
        if self.underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


class Graph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, machine: CudaMachine, keep_graph: bool = False) -> None:
        self.machine = machine
        self.tape = Tape()
        self.is_valid = True
        self._state: GeneratorState | None = None
        self._is_captured = False
        self._workspace: object | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        machine = self.machine
        if self._is_captured:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph")
        self._stream = machine.current_stream()
        if self._stream.number == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        state = machine.default_generators[machine.current_device()].state
        state.register()
        self._state, state.is_capturing = state, True
        state.fill()
        self._numbers = state.numbers
        self._pool = pool or machine.graph_pool_handle()
        machine.allocator.begin(self._pool)
        self._stream.graph = self

    def record(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation during the capture."""
        if torch.Tag.nondeterministic_seeded in func.tags and not self._draws():
            raise RuntimeError(
                "Attempt to increase offset for a CUDA generator not in capture mode"
            )
        if func._schema.name in PRODUCTS:
            self._workspace = self.machine.workspaces.setdefault(self._stream, object())
        assert self._state is not None, "a capture has begun"
        try:
            with self._state.drawing():
                return self.tape.__torch_dispatch__(func, types, args, kwargs)
        except RuntimeError as error:
            self.is_valid = False
            raise RuntimeError(f"{_NOT_PERMITTED}: {func._schema.name}") from error

    def refuse(self, what: str) -> None:
        """Raise for work that invalidates the capture."""
        self.is_valid = False
        raise RuntimeError(f"{_NOT_PERMITTED}: {what}")

    def capture_end(self) -> None:
        machine, stream = self.machine, self._stream
        if machine.current_stream() is not stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        stream.graph = None
        with _disable_current_modes():
            self.tape.undo()
        assert self._state is not None, "a capture has begun"
        self._state.numbers = self._numbers
        if not self.is_valid:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        machine.allocator.end(self._pool)
        self._state.is_capturing = False
        if not any(computes(func) for func, *_ in self.tape.calls):
            warnings.warn("The CUDA Graph is empty.", stacklevel=2)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            self._memory = _Memory(self.tape)
        self._is_captured = True
        machine.live_graphs += 1
        machine.n_captures += 1

    def replay(self) -> None:
        machine = self.machine
        if not self._is_captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        machine.assert_not_capturing()
        if self._workspace is not machine.workspaces.get(self._stream) and self._workspace:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        assert self._state is not None, "a capture has begun"
        self._state.fill()
        stream = machine.current_stream(self._stream.device)
        machine.n_replays += 1
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            stream.launch()
            self._memory.check()
            machine.check_order(stream, self._memory.read, self._memory.written)
            with self._state.drawing():
                self.tape.replay()

    def reset(self) -> None:
        if self._state is not None:
            self._state.n_graphs -= 1
            self._state = None
        for stream in self.machine.streams():
            if stream.graph is not None and stream.graph is not self:
                stream.graph.is_valid = False
        if self._is_captured:
            self._is_captured = False
            self.machine.live_graphs -= 1
            self.machine.workspaces.pop(self._stream, None)
            self.machine.allocator.use_count[self._pool] -= 1

    def __del__(self) -> None:
        self.reset()

    def _draws(self) -> bool:
        generator = self.machine.default_generators[self._stream.device.index or 0]
        return generator.state is self._state


class _Memory:
    """The memory that a capture uses; its tensors are the capture's own, on that memory.

    Args:
        tape: whose tensors are replaced by its own.

    Attributes:
        read: a tensor for each memory that it reads and has not allocated.
        written: a tensor for each that it writes.
    """

    def __init__(self, tape: Tape) -> None:
        read: dict[int, Tensor] = {}
        changed: dict[int, Tensor] = {}
        outputs: set[int] = set()
        own: dict[int, Tensor] = {}

        def own_tensor(x: Any) -> Any:
            if not isinstance(x, Tensor) or _address(x) in outputs:
                return x
            return own.setdefault(id(x), x.detach())

        references = [(args, kwargs, result) for _, args, kwargs, result in tape.calls]
        for n, (func, *call) in enumerate(tape.calls):
            args, kwargs = tree_map(own_tensor, call[:2])
            read |= {_address(x): x for x in tensors(args, kwargs) if _address(x) not in outputs}
            outputs.update({_address(x) for x in tensors(call[2])} - read.keys())
            result = tree_map(own_tensor, call[2])
            for x in written(func, args, kwargs, result) if computes(func) else ():
                changed.setdefault(_address(x), x)
            tape.calls[n] = func, args, kwargs, result
        del references
        self.read, self.written = list(read.values()), list(changed.values())
        addresses = [_address(x) for x in own.values()]
        self._n_holders = [addresses.count(address) for address in read]

    def check(self) -> None:
        """Raise if memory is used to which nothing but the capture refers any more."""
        for x, n_holders in zip(self.read, self._n_holders, strict=True):
            n_uses = torch._C._storage_Use_Count(_address(x)) - 1  # the other is this function's
            if n_uses <= n_holders:
                raise RuntimeError(
                    "CUDA error: an illegal memory access was encountered: a tensor of "
                    f"{tuple(x.shape)} that the graph uses has been freed"
                )


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata
