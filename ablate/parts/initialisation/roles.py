"""The role of every linear layer of an assembled model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from torch import nn

from ablate.parts.attention import Attention
from ablate.parts.dims import Side
from ablate.parts.embedding import Embedding
from ablate.parts.feed_forward import FeedForward
from ablate.parts.roles import Role, Roles


class Block(Protocol):
    """A block of weights, for one layer or several, as an initialisation reads it."""

    @property
    def attentions(self) -> Sequence[Attention]: ...

    @property
    def feed_forward(self) -> FeedForward: ...

    def modules(self) -> Iterator[nn.Module]: ...


class Stack(Protocol):
    """A stack of layers, as an initialisation reads it."""

    @property
    def blocks(self) -> Sequence[Block]:
        """Return its blocks of weights, in the order of their first use."""

    @property
    def order(self) -> Sequence[int]:
        """Return the number of the block of each layer, from the bottom."""


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
