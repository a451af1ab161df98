"""Optimizers: each is PyTorch's, with our options handed through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ablate.parts.optimizer import Optimizer
from ablate.registry import build, choose, slots
from tests.tiny import alternatives

OPTIONS = [
    (name, option)
    for name, entry in slots()["optimizer"].items()
    for option in entry.options.model_fields
]


def steps(name: str, n: int = 5, **options: Any) -> torch.Tensor:
    """Minimise a small bumpy function for ``n`` steps; return where that leads."""
    x = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    optimizer = build(Optimizer, choose(Optimizer, name, **options)).make([x])
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for _ in range(n):
        optimizer.zero_grad()
        (x.square().sum() + (3 * x).sin().sum()).backward()
        optimizer.step()
    return x.detach()


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_changes_the_steps(name: str, option: str) -> None:
    values = list(alternatives(slots()["optimizer"][name], option))
    assert values
    for value in values:
        assert not torch.equal(steps(name, **{option: value}), steps(name))


@pytest.mark.parametrize("name", sorted(slots()["optimizer"]))
def test_a_fresh_optimizer_waits_for_its_schedule(name: str) -> None:
    optimizer = build(Optimizer, choose(Optimizer, name)).make([nn.Parameter(torch.ones(2))])
    assert all(group["lr"] == 0 for group in optimizer.param_groups)


def test_adam_takes_the_steps_of_its_paper() -> None:
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t in range(1, 6):
        gradient = 2 * x + 3 * (3 * x).cos()
        m = 0.9 * m + 0.1 * gradient
        v = 0.98 * v + 0.02 * gradient.square()
        x = x - 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    torch.testing.assert_close(steps("adam"), x)


def test_weight_decay_is_decoupled_in_adamw_alone() -> None:
    plain, coupled = steps("adamw", weight_decay=0.0), steps("adam", weight_decay=0.0)
    torch.testing.assert_close(plain, coupled)
    assert not torch.allclose(steps("adamw", weight_decay=0.5), steps("adam", weight_decay=0.5))
