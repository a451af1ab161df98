"""What every linear layer of an assembled model is there for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torch import nn

from ablate.parts.attention import Attention
from ablate.parts.dims import Side
from ablate.parts.embedding import Embedding
from ablate.parts.feed_forward import FeedForward


class Whole(Protocol):
    """Whatever holds modules."""

    def modules(self) -> Iterator[nn.Module]:
        """Yield all that it holds."""
        ...


class Block(Whole, Protocol):
    """One layer's weights, as an initialisation sees them."""

    @property
    def attentions(self) -> Sequence[Attention]:
        """Return its attentions."""
        ...

    @property
    def feed_forward(self) -> FeedForward:
        """Return its feed-forward."""
        ...


class Blocks(Protocol):
    """A stack, as an initialisation sees it."""

    @property
    def blocks(self) -> Sequence[Block]:
        """Return its blocks of weights, in the order of their first use."""
        ...

    @property
    def order(self) -> Sequence[int]:
        """Return which block stands at each layer, from the bottom."""
        ...


class Model(Whole, Protocol):
    """An assembled model, as an initialisation sees it."""

    @property
    def embedding(self) -> Embedding:
        """Return what makes vectors of ids, and logits of vectors."""
        ...

    @property
    def encoder(self) -> Blocks:
        """Return the stack that reads the source."""
        ...

    @property
    def decoder(self) -> Blocks:
        """Return the stack that writes the target."""
        ...


@dataclass(frozen=True)
class Role:
    """What a linear layer is there for.

    Attributes:
        side: its stack; None outside of the stacks' layers.
        depth: of its layer, from the bottom of the stack, 1 first; of the lowest where several
            layers share it; 0 outside.
        n_layers: in its stack; 0 outside.
        n_branches: residual branches in its stack; 0 outside.
        kind: what it belongs to: ``output`` makes the logits.
        is_packed: whether some programs keep it, and initialise it, as one with others: it makes
            queries, keys or values.
        is_value: whether it makes values.
        ends_branch: whether what it returns is added to the residual stream.
    """

    side: Side | None = None
    depth: int = 0
    n_layers: int = 0
    n_branches: int = 0
    kind: Literal["attention", "feed_forward", "output", "other"] = "other"
    is_packed: bool = False
    is_value: bool = False
    ends_branch: bool = False


def roles(model: Model) -> dict[nn.Linear, Role]:
    """Return the role of every linear layer in the layers of ``model``, and of its output."""
    found: dict[nn.Linear, Role] = {}
    stacks: tuple[tuple[Side, Blocks], ...] = (
        ("encoder", model.encoder),
        ("decoder", model.decoder),
    )
    for side, stack in stacks:
        n_layers = len(stack.order)
        for number, block in enumerate(stack.blocks):
            n_branches = n_layers * (len(block.attentions) + 1)
            inside = Role(side, stack.order.index(number) + 1, n_layers, n_branches)
            found |= dict.fromkeys(linears(block), inside)
            for attention in block.attentions:
                found |= _in_attention(attention, replace(inside, kind="attention"))
            found |= _in_feed_forward(block.feed_forward, replace(inside, kind="feed_forward"))
    if model.embedding.output is not None:
        found[model.embedding.output] = Role(kind="output")
    return found


def _in_attention(attention: Attention, inside: Role) -> dict[nn.Linear, Role]:
    packed = set(attention.packed())
    return {
        linear: replace(
            inside,
            is_packed=linear in packed,
            is_value=linear is attention.v,
            ends_branch=linear is attention.out,
        )
        for linear in linears(attention)
    }


def _in_feed_forward(feed_forward: FeedForward, inside: Role) -> dict[nn.Linear, Role]:
    """Tell the layers apart by the names that all feed-forwards give them: ``down`` is last."""
    return {
        linear: replace(inside, ends_branch=path.rpartition(".")[2] == "down")
        for path, linear in feed_forward.named_modules()
        if isinstance(linear, nn.Linear)
    }


def linears(whole: Whole) -> Iterator[nn.Linear]:
    """Yield every linear layer in ``whole``."""
    return (module for module in whole.modules() if isinstance(module, nn.Linear))
