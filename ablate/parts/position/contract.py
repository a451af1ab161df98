"""The contract of position encodings.

B batch, T tokens, S keys, D d_model, H n_heads, K d_k. Positions count from 0.
"""

from __future__ import annotations

from torch import Tensor, nn

from ablate.parts.dims import Dims, StackInfo
from ablate.registry import Part


class Position(nn.Module, Part, slot="position"):
    """The contract. An encoding overrides the hooks it needs; the others change nothing.

    Every hook gets the positions as a tensor, so that a single token at position 7 is treated like
    the eighth token of a whole sequence. All layers of a stack share one encoding; hooks get the
    number of the layer, for parameters that differ by layer. Cross-attention has no encoding: its
    queries and keys share no axis.

    Args:
        dims: sizes.
        stack_info: which stack, and its depth.

    Attributes:
        hides_keys_from_heads: that its bias hides keys from some heads, in words, so that it cannot
            be mixed between heads or stand beside a count of keys; empty if it hides none.
    """

    hides_keys_from_heads: str = ""

    def __init__(self, dims: Dims, stack_info: StackInfo) -> None:
        super().__init__()

    def at_layer(self, layer: int) -> Position:
        """Return the encoding whose hooks the attention of a layer calls; ``layer`` is 0 first."""
        return self

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change the embeddings ``x`` (B, T, D) of the tokens at ``positions`` (T,)."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change queries or keys ``x`` (B, H, T, K) before their dot product."""
        return x

    def bias(
        self, q: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int
    ) -> Tensor | None:
        """Return a term to add to the scores, broadcastable to (B, H, T, S), or None.

        Args:
            q: the queries as they enter the dot product, scaled, (B, H, T, K).
            query_positions: positions of the queries, (T,).
            key_positions: positions of the keys, (S,).
            layer: number of the layer, 0 first.
        """
        return None

    def values(
        self, weights: Tensor, query_positions: Tensor, key_positions: Tensor, layer: int
    ) -> Tensor | None:
        """Return a term to add to the heads' outputs (B, H, T, V), or None.

        Args:
            weights: of the attention, after their dropout, (B, H, T, S).
            query_positions: positions of the queries, (T,).
            key_positions: positions of the keys, (S,).
            layer: number of the layer, 0 first.
        """
        return None
