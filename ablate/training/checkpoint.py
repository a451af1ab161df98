"""Checkpoints: everything that an interrupted run needs to go on as if it had not stopped."""

from __future__ import annotations

import errno
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ablate.errors import DamagedFileWarning
from ablate.training.weights import Weights
from ablate.writing import atomic_write

_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
    EOFError,
    LookupError,
    NotImplementedError,
    ValueError,
)
"""What Python and `torch.load` raise for a damaged file, beside a `RuntimeError` and `OSError`."""
_DAMAGE = ("PytorchStreamReader", "inline_container", "encrypted")
"""Parts of the messages of a `RuntimeError` that means a damaged file."""


def save(
    file: Path,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    is_first: bool = True,
) -> None:
    """Write a checkpoint, in the first of all ranks, which call this together."""
    content = {"model": weights.state_dict(), "optimizer": optimizer.state_dict(), "loop": state}
    if is_first:
        with atomic_write(file) as stream:
            torch.save(content, stream)


def restore(
    file: Path,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    is_usable: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> dict[str, Any] | None:
    """Load a checkpoint into ``weights`` and ``optimizer``; return the loop's state, or None.

    A checkpoint that is damaged, or of other code, is removed with a `DamagedFileWarning`.
    """
    for unfinished in file.parent.glob(f".{file.name}.*"):  # of a process that was killed
        unfinished.unlink()
    if not file.exists():
        return None
    content = _load(file, weights.map_location)
    if content is None or not (
        {name: x.shape for name, x in content["model"].items()} == weights.shapes()
        and _has_groups(content["optimizer"], optimizer)
        and is_usable(content["loop"])
    ):
        reason = "is damaged" if content is None else "has lost its snapshots, or is of other code"
        warnings.warn(f"{file}: {reason}; the run begins anew", DamagedFileWarning, stacklevel=2)
        file.unlink()
        return None
    weights.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return dict(content["loop"])


def _has_groups(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> bool:
    parts = saved.get("optimizers", [saved])  # of several that are combined as one
    if not all("param_groups" in part for part in parts):  # a plugin may keep what it wants
        return True
    groups = [group for part in parts for group in part["param_groups"]]
    sizes, own = ([len(g["params"]) for g in gs] for gs in (groups, optimizer.param_groups))
    return sizes == own


def _load(file: Path, map_location: torch.device) -> dict[str, Any] | None:
    """Return the content of a checkpoint; None if it is damaged, and for no other error."""
    try:
        with zipfile.ZipFile(file) as parts:
            if parts.testzip() is not None:  # `torch.load` does not verify checksums
                return None
        content: dict[str, Any] = torch.load(file, map_location=map_location, weights_only=True)
    except _BROKEN:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset that no file has
            return None
        raise
    except RuntimeError as error:
        if any(text in str(error) for text in _DAMAGE):
            return None
        raise
    return content
