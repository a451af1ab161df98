"""Sharing: which layers of a stack use the same block of weights."""

from __future__ import annotations

from abc import abstractmethod

from ablate.parts.dims import AtLeastTwo, StackInfo
from ablate.registry import Part, register


class Sharing(Part, slot="sharing"):
    """The contract: the block of weights that each layer of a stack uses.

    Args:
        stack_info: which stack, and its depth.
    """

    def __init__(self, stack_info: StackInfo) -> None:
        self.n_layers = stack_info.n_layers

    @abstractmethod
    def order(self) -> list[int]:
        """Return the block of each layer, from the bottom; blocks are numbered by first use."""


@register(
    "none",
    formula="block(layer) = layer",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.1",
)
class NoSharing(Sharing):
    """Every layer has weights of its own."""

    def order(self) -> list[int]:
        return list(range(self.n_layers))


@register(
    "block",
    formula="block(layer) = 0",
    source="Dehghani et al. 2019, arXiv:1807.03819; Narang et al. 2021, arXiv:2102.11972, sec. 2.5",
)
class Block(Sharing):
    """All layers of the stack are one block, norms included.

    As ``model.sharing`` it shares within each stack; as ``model.encoder.sharing`` or
    ``model.decoder.sharing`` it is the encoder-only or decoder-only sharing of Narang et al.
    """

    def order(self) -> list[int]:
        return [0] * self.n_layers


class _FewerBlocks(Sharing):
    """Fewer blocks than layers.

    Args:
        n_blocks: distinct blocks.

    Raises:
        ValueError: unless there are more layers than blocks, because nothing would be shared.
    """

    def __init__(self, stack_info: StackInfo, *, n_blocks: AtLeastTwo = 2) -> None:
        super().__init__(stack_info)
        if n_blocks >= stack_info.n_layers:
            n = stack_info.n_layers
            layers = f"{n} layer" if n == 1 else f"{n} layers"
            fewer = "fewer blocks (n_blocks)" if n > 2 else "sharing: block"
            raise ValueError(
                f"{n_blocks} blocks for the {layers} of the {stack_info.side} share nothing; "
                f"choose {fewer}, more layers, or sharing: none"
            )
        self.n_blocks = n_blocks


@register(
    "sequence",
    formula="block(layer) = floor(layer n_blocks / n_layers)",
    source="Takase & Kiyono 2021, arXiv:2104.06022, sec. 2 (Sequence)",
)
class Sequence(_FewerBlocks):
    """Neighbouring layers share: 0 0 1 1 2 2."""

    def order(self) -> list[int]:
        return [layer * self.n_blocks // self.n_layers for layer in range(self.n_layers)]


@register(
    "cycle",
    formula="block(layer) = layer mod n_blocks",
    source="Takase & Kiyono 2021, arXiv:2104.06022, sec. 2 (Cycle)",
)
class Cycle(_FewerBlocks):
    """The sequence of blocks is repeated: 0 1 2 0 1 2."""

    def order(self) -> list[int]:
        return [layer % self.n_blocks for layer in range(self.n_layers)]


@register(
    "cycle_reversed",
    formula="block(layer) = layer mod n_blocks, in the last repetition n_blocks - 1 - that",
    source="Takase & Kiyono 2021, arXiv:2104.06022, sec. 2 (Cycle (rev))",
)
class CycleReversed(_FewerBlocks):
    """As `cycle`, but the last repetition is reversed: 0 1 2 2 1 0."""

    def order(self) -> list[int]:
        n, last = self.n_blocks, (self.n_layers - 1) // self.n_blocks  # the last repetition
        layers = range(self.n_layers)
        return [i % n if i // n < last else n - 1 - i % n for i in layers]
