"""The purpose of a linear layer, which the module that owns it declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from ablate.parts.dims import Side


@dataclass(frozen=True)
class Role:
    """What a linear layer is for, and where in the model it is.

    A module declares the attributes from ``kind`` on; `initialisation` adds the others.

    Attributes:
        side: its stack; None outside of the stacks' layers.
        depth: number of its layer from the bottom of the stack, 1 first; of the lowest where
            several layers share it; 0 outside.
        n_layers: in its stack; 0 outside.
        n_branches: residual branches in its stack; 0 outside.
        kind: the module that it belongs to; ``output`` makes the logits.
        is_packed: whether other programs store it, and initialise it, in one matrix with others:
            it makes queries, keys or values.
        is_value: whether it makes values.
        ends_branch: whether its output is added to the residual stream.
    """

    side: Side | None = None
    depth: int = 0
    n_layers: int = 0
    n_branches: int = 0
    kind: Literal["attention", "feed_forward", "output", "other"] = "other"
    is_packed: bool = False
    is_value: bool = False
    ends_branch: bool = False


Roles = dict[nn.Linear, Role]


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """Return every linear layer in ``module``, in order."""
    return [each for each in module.modules() if isinstance(each, nn.Linear)]
