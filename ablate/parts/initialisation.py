"""Initialisations: what the linear layers start from.

Embedding and position tables have an ``init_std`` of their own; norms start as the identity.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat
from torch import nn

from ablate.parts.attention import Attention
from ablate.registry import Part, register


class Initialisation(Part, slot="initialisation"):
    """The contract: overwrite the weights of a whole model, in place."""

    def __init__(self) -> None:
        return

    def initialise(self, model: nn.Module) -> None:
        """Set every linear layer's weight with `weight` and its bias to 0."""
        packed = {id(linear) for linear in _packed(model)}
        for linear in _linears(model):
            self.weight(linear, is_packed=id(linear) in packed)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def weight(self, linear: nn.Linear, *, is_packed: bool) -> None:
        """Set one weight; ``is_packed`` says that it projects queries, keys or values."""
        raise NotImplementedError


@register("xavier", source="Glorot & Bengio 2010, AISTATS, eq. 16")
class Xavier(Initialisation):
    """U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)), each matrix by itself; biases 0."""

    def __init__(self, *, gain: PositiveFloat = 1.0) -> None:
        self.gain = gain

    def weight(self, linear: nn.Linear, *, is_packed: bool) -> None:
        nn.init.xavier_uniform_(linear.weight, gain=self.gain)


@register("xavier_packed", source="fairseq, multihead_attention.py; torch.nn.MultiheadAttention")
class XavierPacked(Initialisation):
    """Xavier, but queries, keys and values with gain 1 / sqrt(2).

    That is what Xavier's rule gives when the three square matrices are one packed (3D, D).
    """

    def weight(self, linear: nn.Linear, *, is_packed: bool) -> None:
        nn.init.xavier_uniform_(linear.weight, gain=2**-0.5 if is_packed else 1.0)


@register("torch", source="He et al. 2015, arXiv:1502.01852, as in torch.nn.Linear (a = sqrt 5)")
class TorchDefault(Initialisation):
    """Weights and biases from U(-a, a) with a = 1 / sqrt(fan_in), as PyTorch makes them."""

    def initialise(self, model: nn.Module) -> None:
        for linear in _linears(model):
            linear.reset_parameters()


@register("normal", source="Radford et al. 2018, Improving Language Understanding, sec. 4.1")
class Normal(Initialisation):
    """N(0, std^2); biases 0."""

    def __init__(self, *, std: PositiveFloat = 0.02) -> None:
        self.std = std

    def weight(self, linear: nn.Linear, *, is_packed: bool) -> None:
        nn.init.normal_(linear.weight, std=self.std)


def _linears(model: nn.Module) -> Iterator[nn.Linear]:
    return (module for module in model.modules() if isinstance(module, nn.Linear))


def _packed(model: nn.Module) -> Iterator[nn.Linear]:
    for module in model.modules():
        if isinstance(module, Attention):
            yield from module.packed()
