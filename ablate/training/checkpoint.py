"""Checkpoints: all that a run needs to go on as if it had never stopped."""

from __future__ import annotations

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


def save(
    file: Path,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    is_first: bool = True,
) -> None:
    """Write a checkpoint whole or not at all: a crash leaves the one before it.

    Args:
        file: where to.
        weights: are saved.
        optimizer: its moments are saved.
        state: numbers, strings, lists and dicts, whatever else the loop needs.
        is_first: whether this rank is the one that writes; all call this together.
    """
    content = {"model": weights.state_dict(), "optimizer": optimizer.state_dict(), "loop": state}
    if not is_first:
        return
    with atomic_write(file) as stream:
        torch.save(content, stream)


def restore(
    file: Path,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    is_usable: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> dict[str, Any] | None:
    """Load a checkpoint into ``weights`` and ``optimizer``; return the loop's state, or None.

    One that is damaged, or of other code, counts as none, with a `DamagedFileWarning`, and is
    removed.

    Args:
        file: where it is.
        weights: of the model.
        optimizer: gets its moments.
        is_usable: whether the loop can go on from a state.
    """
    for unfinished in file.parent.glob(f".{file.name}.*"):  # of a process that was killed
        unfinished.unlink()
    if not file.exists():
        return None
    place = weights.map_location
    content = torch.load(file, map_location=place, weights_only=True) if _is_whole(file) else None
    if content is None or not (_fits(content["model"], weights) and is_usable(content["loop"])):
        reason = "is damaged" if content is None else "has lost its snapshots, or is of other code"
        text = f"{file}: {reason}; the run begins anew"
        warnings.warn(text, DamagedFileWarning, stacklevel=2)
        file.unlink()
        return None
    weights.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    loop: dict[str, Any] = content["loop"]
    return loop


def _fits(saved: Mapping[str, torch.Tensor], weights: Weights) -> bool:
    return {name: tensor.shape for name, tensor in saved.items()} == weights.shapes()


def _is_whole(file: Path) -> bool:
    """Return whether all parts have their checksums, which `torch.load` does not look at."""
    try:
        with zipfile.ZipFile(file) as parts:
            return parts.testzip() is None
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, zlib.error):
        return False
