"""Streams, and the order of their reads and writes of memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from tests.fake_cuda.graphs import Graph
    from tests.fake_cuda.machine import CudaMachine

_ALLOCATING = ("aten::empty", "aten::new_empty", "aten::promote_types")


class Stream:
    """A stream, and which work of which other streams it comes after."""

    def __init__(self, machine: CudaMachine, index: int, number: int) -> None:
        self.machine = machine
        self.device = torch.device("cuda", index)
        self.number = number  # 0 is the default stream
        self.graph: Graph | None = None  # that is being captured
        self.waited_for: dict[Stream, int] = {self: 0}

    def wait_stream(self, other: Stream) -> None:
        merge(self.waited_for, other.waited_for)

    def is_capturing(self) -> bool:
        return self.graph is not None

    def synchronize(self) -> None:
        self.machine.wait_on_host(self)

    def launch(self) -> None:
        """Add an operation to the stream."""
        merge(self.waited_for, self.machine.host)
        self.waited_for[self] += 1


class Use:
    """Which streams have used a piece of memory, and when."""

    def __init__(self, storage: StorageWeakRef) -> None:
        self.storage = storage
        self.writes: dict[Stream, int] = {}
        self.reads: dict[Stream, int] = {}

    def touch(self, stream: Stream, *, is_write: bool) -> None:
        for other, time in (self.writes | (self.reads if is_write else {})).items():
            if stream.waited_for.get(other, 0) < time:
                raise RuntimeError(
                    f"stream {stream.number} of {stream.device} uses memory that stream "
                    f"{other.number} of {other.device} uses, without having waited for it"
                )
        now = stream.waited_for[stream]
        if is_write:
            self.writes, self.reads = {stream: now}, {}
        else:
            self.reads[stream] = now


@functools.cache
def computes(func: Any) -> bool:
    """Return whether an operation does more than make a view or allocate memory."""
    schema = func._schema
    if schema.name.startswith(_ALLOCATING) or schema.name in ("aten::_unsafe_view", "aten::detach"):
        return False
    results = [result.alias_info for result in schema.returns]
    return not any(alias is not None and not alias.is_write for alias in results)


def tensors(*values: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments or results."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors(*value)
        elif isinstance(value, dict):
            yield from tensors(*value.values())


def written(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> list[Tensor]:
    """Return the tensors that an operation writes: results, and arguments that it changes."""
    positions, names = _changed_arguments(func)
    changed = [args[i] for i in positions if i < len(args)]
    changed += [kwargs[name] for name in names if name in kwargs]
    return list(tensors(changed, result))


@functools.cache
def _changed_arguments(func: Any) -> tuple[list[int], list[str]]:
    changed = [
        (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [i for i, _ in changed], [name for _, name in changed]


def merge(mine: dict[Stream, int], other: dict[Stream, int]) -> None:
    """Raise the times of one stream's view to those of another."""
    for stream, time in other.items():
        mine[stream] = max(mine.get(stream, 0), time)
