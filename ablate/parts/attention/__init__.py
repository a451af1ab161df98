"""Attention: how tokens look at one another."""

from ablate.parts.attention.contract import Attention, Cache, View

__all__ = ["Attention", "Cache", "View"]
