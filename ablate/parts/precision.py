"""The precision in which parts compute what bf16 is too coarse for."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in single precision, or in its own type if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
