"""Checkpoints: all that a run needs to go on as if it had never stopped."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ablate.errors import DamagedFileWarning
from ablate.writing import atomic_write


def save(
    file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Write a checkpoint whole or not at all: a crash leaves the one before it.

    Args:
        file: where to.
        model: its weights are saved.
        optimizer: its moments are saved.
        state: numbers, strings, lists and dicts, whatever else the loop needs.
    """
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loop": state}
    with atomic_write(file) as stream:
        torch.save(content, stream)


def restore(
    file: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    is_usable: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> dict[str, Any] | None:
    """Load a checkpoint into ``model`` and ``optimizer``; return the loop's state, or None.

    One that is damaged, or of other code, counts as none, with a `DamagedFileWarning`, and is
    removed.

    Args:
        file: where it is.
        model: gets its weights.
        optimizer: gets its moments.
        is_usable: whether the loop can go on from a state.
    """
    for unfinished in file.parent.glob(f".{file.name}.*"):  # of a process that was killed
        unfinished.unlink()
    if not file.exists():
        return None
    device = next(model.parameters()).device
    content = torch.load(file, map_location=device, weights_only=True) if _is_whole(file) else None
    if content is None or not (_fits(content["model"], model) and is_usable(content["loop"])):
        reason = "is damaged" if content is None else "has lost its snapshots, or is of other code"
        text = f"{file}: {reason}; the run begins anew"
        warnings.warn(text, DamagedFileWarning, stacklevel=2)
        file.unlink()
        return None
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    loop: dict[str, Any] = content["loop"]
    return loop


def _fits(weights: Mapping[str, torch.Tensor], model: nn.Module) -> bool:
    own = model.state_dict()
    shapes = {name: weight.shape for name, weight in weights.items()}
    return shapes == {name: weight.shape for name, weight in own.items()}


def _is_whole(file: Path) -> bool:
    """Return whether all parts have their checksums, which `torch.load` does not look at."""
    try:
        with zipfile.ZipFile(file) as parts:
            return parts.testzip() is None
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, zlib.error):
        return False
