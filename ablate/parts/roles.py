"""The role of a linear layer, as declared by the module that owns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from ablate.parts.dims import Side


@dataclass(frozen=True)
class Role:
    """The purpose of a linear layer, and its location in the model.

    A module declares the attributes from ``kind`` on; `initialisation` sets the others.

    Attributes:
        side: its stack; None outside of the stacks' layers.
        depth: number of its layer from the bottom of the stack, 1 first; the lowest if several
            layers share it; 0 outside.
        n_layers: number of layers in its stack; 0 outside.
        n_branches: number of residual branches in its stack; 0 outside.
        kind: the module that it belongs to; ``output`` computes the logits.
        is_packed: whether it computes queries, keys or values, whose weights other programs store
            and initialise as one matrix.
        is_value: whether it computes values.
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
    return [linear for linear in module.modules() if isinstance(linear, nn.Linear)]
