"""Attention: how tokens look at one another."""

from ablate.parts.attention.cache import Cache, FixedCache
from ablate.parts.attention.contract import Attention, View

__all__ = ["Attention", "Cache", "FixedCache", "View"]
