"""The role of a linear layer, as declared by the module that owns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from ablate.parts.dims import Side


@dataclass(frozen=True)
class Role:
    """The purpose of a linear layer, and its location in the model.

    A module declares the attributes from ``kind`` on; `initialisation` sets the others, which are
    None and 0 outside of the stacks' layers.
    """

    side: Side | None = None
    depth: int = 0  # of its layer, 1 at the bottom of the stack; of several layers, of the lowest
    n_layers: int = 0  # of its stack
    n_branches: int = 0  # residual branches of its stack
    kind: Literal["attention", "feed_forward", "output", "other"] = "other"
    is_packed: bool = False  # computes q, k or v, which other programs store as one matrix
    is_query: bool = False  # computes q
    is_value: bool = False  # computes v
    ends_branch: bool = False  # its output is added to the residual stream


Roles = dict[nn.Linear, Role]


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """Return every linear layer in ``module``, in order."""
    return [linear for linear in module.modules() if isinstance(linear, nn.Linear)]
