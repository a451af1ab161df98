"""Attention: how tokens exchange information."""

from ablate.parts.attention.cache import KVCache, StaticKVCache
from ablate.parts.attention.contract import Attention, AttentionContext

__all__ = ["Attention", "AttentionContext", "KVCache", "StaticKVCache"]
