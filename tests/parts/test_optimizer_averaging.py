"""Optimizers that average the weights, against the package of their authors."""

from __future__ import annotations

import torch
from torch import nn

from ablate.parts.optimizer import Averaging, Group, Optimizer
from ablate.registry import build, choose
from ablate.training.averaging import evaluated_weights
from ablate.training.step import set_lr
from tests.parts.test_optimizer import Bowl, descend

RATES = (0.02, 0.05, 0.1, 0.1, 0.04, 0.1, 0.2, 0.1)
TRAINED = """
    -7.465809654340637 -4.375170340229863 -2.877728124194609 -2.1357738049204236
    -1.0734347131880686 0.24135114626503257 -0.215429387607777 -0.02566962305067046
    0.39390606587523264 0.5923914799844011 0.6645130326646868 1.432643932175974
    1.062729198318427 -2.143909743073914 0.4462072971507145
"""
EVALUATED = """
    -7.505149109972287 -4.416146474453036 -2.898361807620639 -2.10307107919306
    -1.0567731239968232 0.2057939643255452 -0.19350373131662144 -0.0309133188995882
    0.3531369720449125 0.5524857924210009 0.6376575613035245 1.4039918643191034
    1.0673003140455735 -2.1235485720978913 0.4641818272484087
"""
"""Of `Bowl`, by schedulefree 1.4.1 with these rates, betas, eps and weight decay as below."""


def flat(bowl: Bowl) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in bowl.parameters()]).clone()


def numbers(text: str) -> torch.Tensor:
    return torch.tensor([float(number) for number in text.split()], dtype=torch.float64)


def test_schedule_free_is_the_package_of_its_authors() -> None:
    bowl = Bowl()
    groups = [Group(list(bowl.parameters()), is_matrix=False)]
    choice = choose(Optimizer, "schedule_free_adamw", betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2)
    optimizer = build(Optimizer, choice).make(groups)
    for rate in RATES:
        set_lr(optimizer, rate)
        descend(bowl, optimizer, 1)
    torch.testing.assert_close(flat(bowl), numbers(TRAINED), atol=1e-12, rtol=1e-12)
    with evaluated_weights(optimizer):
        torch.testing.assert_close(flat(bowl), numbers(EVALUATED), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(flat(bowl), numbers(TRAINED), atol=1e-12, rtol=1e-12)


def test_weights_without_a_gradient_have_no_average() -> None:
    used, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    choice = choose(Optimizer, "schedule_free_adamw")
    optimizer = build(Optimizer, choice).make([Group([used, idle], is_matrix=False)])
    assert isinstance(optimizer, Averaging)
    assert list(optimizer.averages()) == []
    set_lr(optimizer, 0.1)
    used.sum().backward()
    optimizer.step()
    assert [w is used for w, _ in optimizer.averages()] == [True]
