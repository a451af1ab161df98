"""A sharing of layers to start from. Try it: ablate check my_sharing.py."""

from __future__ import annotations

from ablate.parts.sharing import Sharing
from ablate.registry import register


@register("my_sharing", formula="block(layer) = layer // 2", source="you, 2026, sec. 1")
class MySharing(Sharing):
    """Every two neighbouring layers are one block of weights."""

    def order(self) -> list[int]:
        return [layer // 2 for layer in range(self.n_layers)]
