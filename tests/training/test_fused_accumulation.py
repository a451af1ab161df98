"""Casts and sums of all weights together give the same numbers as those of single weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ablate.model import Transformer
from ablate.training.engines.cuda_graph import FusedGradAccumulator
from ablate.training.gradient import StepInputs, forward_backward
from tests.tape import Tape
from tests.tiny import PARTS, mixed, mixtures, some_batch, thin
from tests.training.reversal import make_step_config


def backward(model: Transformer, precision: str) -> Callable[[], Tensor]:
    """Return a function that adds a gradient to those of a model."""
    inputs = StepInputs.of(some_batch(), 7)
    return partial(forward_backward, model, make_step_config(precision=precision), inputs)


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [weight.grad for weight in model.parameters()]


def sums(
    model: nn.Module, add: Callable[[], Tensor], fused: FusedGradAccumulator | None = None
) -> list[Tensor | None]:
    """Return the losses and the gradients after two additions."""
    model.zero_grad()
    torch.manual_seed(3)
    for is_captured in (False, True):
        losses = add() if fused is None else fused(add, is_captured=is_captured)
    return [losses, *gradients(model)]


@pytest.mark.full
@pytest.mark.parametrize("parts", mixtures(PARTS), ids=str)
def test_no_part_comes_out_differently(parts: list[tuple[str, str]]) -> None:
    """Added twice, and with weights that have changed since the accumulator was made."""
    for model in mixed(parts):
        fused = FusedGradAccumulator(model.train(), "bf16")
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.5)
        add = backward(model, "bf16")
        actual = sums(model, add, fused)
        expected = sums(model, add)
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("precision", "n"), [("fp32", (0, 1)), ("bf16", (2, 2))])
def test_no_weight_has_a_kernel_of_its_own(precision: str, n: tuple[int, int]) -> None:
    model = thin("position", "sinusoidal").train()
    add = partial(FusedGradAccumulator(model, precision), backward(model, precision))
    add(is_captured=False)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    weights = [weight for linear in linears for weight in linear.parameters()]
    ids = {id(weight.grad) for weight in weights}
    if precision == "bf16":  # in fp32 the products use the weights themselves
        ids |= {id(weight) for weight in weights}
    with Tape() as tape:
        add(is_captured=True)
    names = [func._schema.name for func, *_ in tape.calls]
    assert (names.count("aten::_foreach_copy_"), names.count("aten::_foreach_add_")) == n
    assert not any(id(x) in ids for _, arguments, *_ in tape.calls for x in arguments)


def test_other_code_uses_the_weight_of_a_layer_itself() -> None:
    """Its gradient is the sum of both uses."""
    layer = nn.Linear(3, 3)
    x = torch.randn(5, 3)

    def add() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        with torch.autocast("cpu", enabled=False):
            y = y + layer(x) + layer.weight.square().sum()
        y.sum().backward()
        return y.detach()

    expected = add(), layer.weight.grad, layer.bias.grad
    layer.zero_grad()
    actual = (
        FusedGradAccumulator(layer, "bf16")(add, is_captured=False),
        layer.weight.grad,
        layer.bias.grad,
    )
    torch.testing.assert_close(actual, expected)
    assert "forward" not in vars(layer)


def test_a_compiled_model_is_not_compiled_again_at_every_call() -> None:
    """After a few times PyTorch would give up without an error, and run it eagerly."""
    layer, x = nn.Linear(3, 3), torch.randn(5, 3)
    compiled = torch.compile(layer, backend="eager")

    def add() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = compiled(x).sum()
        loss.backward()
        return loss.detach()

    fused = FusedGradAccumulator(layer, "bf16")
    fused(add, is_captured=False)
    with torch.compiler.set_stance("fail_on_recompile"):
        fused(add, is_captured=True)


def test_a_weight_that_is_not_trained_stays_so() -> None:
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad_(False)

    def add() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = layer(torch.ones(5, 3)).sum()
        loss.backward()
        return loss.detach()

    FusedGradAccumulator(layer, "bf16")(add, is_captured=False)
    assert layer.weight.grad is None
    torch.testing.assert_close(layer.bias.grad, torch.full((3,), 5.0))


def test_a_first_gradient_is_not_captured() -> None:
    model: Transformer = thin("position", "sinusoidal").train()
    with pytest.raises(RuntimeError, match="first gradient in a capture"):
        FusedGradAccumulator(model, "fp32")(backward(model, "fp32"), is_captured=True)
    assert set(gradients(model)) == {None}
