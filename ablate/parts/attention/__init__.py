"""Attention: how tokens exchange information."""

from ablate.parts.attention.cache import Cache, FixedCache
from ablate.parts.attention.contract import Attention, AttentionContext

__all__ = ["Attention", "AttentionContext", "Cache", "FixedCache"]
