"""The parameters of an assembled model, counted and not computed by a formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ablate.model import Transformer
from ablate.registry import slots


def count_parameters(model: Transformer) -> dict[str, Any]:
    """Count the parameters of every part, without those of the parts inside it.

    Returns:
        ``total``; ``embedding``, all tables and the output matrix; and ``by_part``, which adds up
        to the total: for each location the name of its part and its parameters.
    """
    parts = list(_parts(model))
    by_part: dict[str, dict[str, Any]] = {
        location: {"part": name, "parameters": 0} for location, name, _ in parts
    }
    counted: set[int] = set()
    for location, _, module in reversed(parts):  # from the inside out
        for parameter in module.parameters():
            if id(parameter) not in counted:
                counted.add(id(parameter))
                by_part[location]["parameters"] += parameter.numel()
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for transform in (stack.input_transform, stack.output_transform):  # the residual scheme's
            for parameter in transform.parameters():
                if id(parameter) not in counted:
                    by_part[f"{side}.residual"]["parameters"] += parameter.numel()
    total = sum(p.numel() for p in model.parameters())
    assert total == sum(entry["parameters"] for entry in by_part.values()), "a part was missed"
    return {"total": total, "embedding": by_part["embedding"]["parameters"], "by_part": by_part}


def _parts(model: Transformer) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield each part: location without the layer (``encoder.attention``), name, module."""
    names: dict[type, str] = {
        entry.cls: name for table in slots().values() for name, entry in table.items()
    }
    for path, module in model.named_modules():
        if type(module) in names:
            location = ".".join(
                name for name in path.split(".") if name != "layers" and not name.isdigit()
            )
            yield location, names[type(module)], module
