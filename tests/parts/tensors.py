"""Tensors that parts are given, and a comparison of those that they return."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def numbers(*shape: int, seed: int = 1) -> Tensor:
    """Draw numbers in double precision, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def close(actual: Any, expected: Any, atol: float = 1e-12) -> None:
    """Compare tensors in double precision, or lists of such, but for their rounding."""
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-12)


def joined(part: Any, y: Tensor) -> Tensor:
    """Return what the output projection of an attention makes of heads ``y`` (B, H, T, V)."""
    return part.out(y.transpose(1, 2).flatten(-2))
