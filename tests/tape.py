"""A recorder for CPUs that replays operations on the memory of the recording, as CUDA graphs do.

A replay does not run Python code, so values that the recorded function got from Python are those of
the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ablate.errors import EngineError

# The gradient of a product reads on the host whether there are zeros, except under a dispatch mode
# such as this one: here nothing but the operation itself can be seen.
_FORBIDDEN = {
    "aten::prod": "to read a value on the host, in its gradient",
    "aten::_local_scalar_dense": "to read a value on the host",
    "aten::item": "to read a value on the host",
    "aten::is_nonzero": "to read a value on the host",
    "aten::equal": "to read a value on the host",
    "aten::nonzero": "to make a shape depend on values",
    "aten::masked_select": "to make a shape depend on values",
    "aten::lift_fresh": "to copy values from the host",
}


class Tape(TorchDispatchMode):
    """Records every operation with its arguments and results, and the data that it overwrites.

    Raises:
        RuntimeError: at operations that a CUDA graph cannot hold.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, dict[str, Any], Any]] = []
        self._overwritten: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        has_mask = any(isinstance(x, Tensor) and x.dtype == torch.bool for x in tree_leaves(args))
        if name in _FORBIDDEN or (name == "aten::index" and has_mask):
            why = _FORBIDDEN.get(name, _FORBIDDEN["aten::nonzero"])
            raise RuntimeError(f"operation not permitted: {why}")
        given = [*zip(func._schema.arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
        for argument, value in given:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._overwritten += [(x, x.clone()) for x in tree_leaves(value)]
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result

    def undo(self) -> None:
        """Restore the data that was overwritten, so that recording has no effect."""
        with torch.no_grad():
            for tensor, content in reversed(self._overwritten):
                tensor.copy_(content)
        self._overwritten.clear()

    def replay(self) -> None:
        """Run all operations again, with results in the memory of the recorded results."""
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and _address(old) != _address(new):
                        old.copy_(new)


def capture(_: object, name: str, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Replace `GraphCapturer.capture`."""
    tape = Tape()
    try:
        with tape:
            result = work()
    except RuntimeError as error:
        raise EngineError(f"{name} could not be captured as a CUDA graph: {error}") from error
    finally:
        tape.undo()

    def replay() -> Tensor:
        tape.replay()
        return result

    return replay


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
