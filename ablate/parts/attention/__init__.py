"""Attention: how tokens look at one another."""

from ablate.parts.attention.cache import Cache, FixedCache
from ablate.parts.attention.contract import Attention, AttentionContext

__all__ = ["Attention", "AttentionContext", "Cache", "FixedCache"]
