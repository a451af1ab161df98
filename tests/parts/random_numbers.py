"""Random numbers that parts are given."""

from __future__ import annotations

import torch
from torch import Tensor


def numbers(*shape: int, seed: int = 1) -> Tensor:
    """Draw numbers in double precision, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
