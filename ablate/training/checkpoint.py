"""Checkpoints: all that a run needs to go on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
    file: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any] | None:
    """Load a checkpoint into ``model`` and ``optimizer``; return the loop's state, or None."""
    for unfinished in file.parent.glob(f".{file.name}.*"):  # of a process that was killed
        unfinished.unlink()
    if not file.exists():
        return None
    device = next(model.parameters()).device
    content = torch.load(file, map_location=device, weights_only=True)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    loop: dict[str, Any] = content["loop"]
    return loop
