"""Keeps ``torch._dynamo``, as slow to import as PyTorch, out of processes that compile nothing.

PyTorch 2.13 imports it at the first call of any optimizer and of operations on the meta device, to
tell a compiler that may be at work to pass them by. Where nothing is compiled that does nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


def install() -> None:
    """Have ``import torch._dynamo`` wait until more of it is used than optimizers use.

    For processes of our own alone: what has been called before the compiler is there is not hidden
    from it later, which is right for the regions that our ``compile`` engine compiles.
    """
    sys.modules.setdefault(_NAME, _LazyDynamo(_NAME))


class _LazyDynamo(ModuleType):
    """Stands for the module; replaced by it when any other attribute is asked for."""

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Return ``fn`` as it is for PyTorch's own wrappers; anyone else gets the real thing."""
        if options == {"wrapping": False}:
            return fn
        return _load().disable(fn, recursive, **options)

    def graph_break(self, *_: Any) -> None:
        """Do nothing, as where nothing is compiled."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # what looks through all modules asks this
            raise AttributeError(name)
        return getattr(_load(), name)


def _load() -> ModuleType:
    if isinstance(sys.modules.get(_NAME), _LazyDynamo):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)
