"""The contract of initialisations, and the roles of a model's linear layers that they go by."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import Dims, Side
from ablate.parts.embedding import Embedding
from ablate.parts.feed_forward import FeedForward
from ablate.parts.roles import Role, Roles
from ablate.registry import Part


class Block(Protocol):
    """A block of weights, for one layer or several, as an initialisation reads it."""

    @property
    def attentions(self) -> Sequence[Attention]: ...

    @property
    def feed_forward(self) -> FeedForward: ...

    def modules(self) -> Iterator[nn.Module]: ...


class Stack(Protocol):
    """A stack of layers: its blocks by first use, and the block of each layer from the bottom."""

    @property
    def blocks(self) -> Sequence[Block]: ...

    @property
    def order(self) -> Sequence[int]: ...


class Model(Protocol):
    """An assembled model, as an initialisation reads it."""

    @property
    def embedding(self) -> Embedding: ...

    @property
    def encoder(self) -> Stack: ...

    @property
    def decoder(self) -> Stack: ...

    def modules(self) -> Iterator[nn.Module]: ...


def roles(model: Model) -> Roles:
    """Return the role of every linear layer of ``model``."""
    all_roles = _defaults(model) | model.embedding.linear_roles()
    stacks: tuple[tuple[Side, Stack], ...] = (
        ("encoder", model.encoder),
        ("decoder", model.decoder),
    )
    for side, stack in stacks:
        n_layers = len(stack.order)
        for number, block in enumerate(stack.blocks):
            depth = stack.order.index(number) + 1
            n_branches = n_layers * (len(block.attentions) + 1)
            block_roles = _defaults(block)
            for attention in block.attentions:
                block_roles |= attention.linear_roles()
            block_roles |= block.feed_forward.linear_roles()
            for linear, role in block_roles.items():
                all_roles[linear] = replace(
                    role, side=side, depth=depth, n_layers=n_layers, n_branches=n_branches
                )
    return all_roles


def _defaults(module: Block | Model) -> Roles:
    return {linear: Role() for linear in module.modules() if isinstance(linear, nn.Linear)}


class Initialisation(Part, slot="initialisation"):
    """The contract: overwrite the weights of a whole model, in place."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims

    def initialise(self, model: Model) -> None:
        """Set every linear layer's weight with `weight`, then its bias, if any, with `bias`."""
        for linear, role in roles(model).items():
            self.weight(linear, role)
            if linear.bias is not None:
                self.bias(linear.bias)

    @abstractmethod
    def weight(self, linear: nn.Linear, role: Role) -> None:
        """Set the weight of one linear layer."""

    def bias(self, bias: Tensor) -> None:
        """Set the bias of one linear layer, by default to 0."""
        nn.init.zeros_(bias)

    def rate(self, role: Role | None) -> float:
        """Return the factor of the learning rate of a linear layer's weight; of others for None."""
        return 1.0
