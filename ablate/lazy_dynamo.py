"""Keeps ``torch._dynamo``, as slow to import as PyTorch, out of processes that compile nothing.

PyTorch 2.13 imports it at the first call of any optimizer and of operations on the meta device, to
exclude them from compilation.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


def install() -> None:
    """Delay ``import torch._dynamo`` until something else of it is used than by optimizers.

    Functions that were wrapped before are not excluded from compilation later; the regions that the
    engine ``compile`` compiles call none.
    """
    sys.modules.setdefault(_NAME, _LazyDynamo(_NAME))


class _LazyDynamo(ModuleType):
    """A placeholder, replaced by the module when any other attribute is read."""

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Return ``fn`` for PyTorch's own wrappers; import the module for other callers."""
        if options == {"wrapping": False}:
            return fn
        return _load().disable(fn, recursive, **options)

    def graph_break(self, *_: Any) -> None:
        """Do nothing, since nothing is compiled."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # read of every module by introspection
            raise AttributeError(name)
        return getattr(_load(), name)


def _load() -> ModuleType:
    if isinstance(sys.modules.get(_NAME), _LazyDynamo):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)
