"""Bounds of a model's size: those beyond which no machine can hold or build it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from ablate.config import RunSpec
from ablate.config.inheritance import SIDES
from ablate.errors import AblateError, first_line_with_type
from ablate.record import leaves
from ablate.registry import RefusedError

MAX_BYTES = 2**47
"""The addresses that a process has on x86-64: 128 TiB."""

MAX_TENSORS = 100_000
"""Five times the parameters and buffers of 1,000 layers; every step of training visits each."""

_N_LAYERS = "model.n_layers"
_MANY_LAYERS = 1_000
_MIN_OVERFLOW = 2**30  # the product of two smaller sizes and 4 bytes fits in 64 bits


@contextmanager
def bounded(run: RunSpec) -> Iterator[None]:
    """Stop the assembly of a run's model on the meta device where it exceeds a bound.

    Raises:
        RefusedError: if it does, or if PyTorch cannot compute with its sizes. The path is that of
            the largest size that the run chooses.
    """
    chosen = leaves(run.model_dump(include={"model", "tokenizer"}))
    whole = ((path, value) for path, value in chosen if type(value) is int)  # True is none
    path, size = max(whole, key=lambda each: each[1])
    if size > MAX_BYTES:
        raise RefusedError(path, f"{size:,} {_EXCEEDS_BYTES}")
    n_layers = max(run.model.stack(side).n_layers for side in SIDES)
    if n_layers > MAX_TENSORS:
        raise RefusedError(_N_LAYERS, f"{n_layers:,} layers {_EXCEED_TENSORS}")
    total = _Total(path, size, _N_LAYERS if n_layers > _MANY_LAYERS else "model")
    hooks = [
        register_module_parameter_registration_hook(total.add),
        register_module_buffer_registration_hook(total.add),
    ]
    try:
        yield
    except AblateError:
        raise
    except Exception as error:
        if size < _MIN_OVERFLOW:
            raise
        reason = f"no model can be built with {size:,}: {first_line_with_type(error)}"
        raise RefusedError(path, f"{reason}; choose a smaller number") from error
    finally:
        for hook in hooks:
            hook.remove()


class _Total:
    """The size of a model that is being assembled."""

    def __init__(self, path: str, size: int, path_of_many: str) -> None:
        self._path, self._size, self._path_of_many = path, size, path_of_many
        self._n_bytes = self._n_tensors = 0

    def add(self, module: nn.Module, name: str, tensor: Tensor | None) -> None:
        """Count a parameter or a buffer."""
        if tensor is None:
            return
        self._n_bytes += tensor.numel() * tensor.element_size()
        self._n_tensors += 1
        if self._n_bytes > MAX_BYTES:
            raise RefusedError(self._path, f"a model with {self._size:,} {_EXCEEDS_BYTES}")
        if self._n_tensors > MAX_TENSORS:
            path = self._path if self._size > MAX_TENSORS else self._path_of_many
            raise RefusedError(path, f"the parameters and buffers of this model {_EXCEED_TENSORS}")


_EXCEEDS_BYTES = (
    "exceeds the 2^47 bytes (128 TiB) that a process can address; choose a smaller number"
)
_EXCEED_TENSORS = (
    f"exceed the bound of {MAX_TENSORS:,}, five times the parameters and buffers of 1,000 layers; "
    "choose fewer layers or experts"
)
