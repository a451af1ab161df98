"""Contracts of objectives, optimizers and schedules.

N target tokens, V vocabulary size.
"""

from __future__ import annotations

import io
import math
import pickle
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ablate.contracts.tiny import PAD, Case, choice_of
from ablate.parts.dims import Dims
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Group, Optimizer
from ablate.parts.schedule import Schedule
from ablate.registry import Choice, build

_N_STEPS = 10_000
_STEPS = (*range(1, 50), *range(50, _N_STEPS + 1, 50))
_DEV = (3.0, 2.5, *[2.6] * 20)
_DIMS = Dims.model_validate({"d_model": 32, "n_heads": 4, "max_len": 16})


def padding_is_free(case: Case) -> None:
    """Padding costs nothing and gets no gradient; every other token gets one."""
    for _, setting, objective in case.settings(_objective):
        logits, targets = _rows(objective)
        logits.requires_grad_()
        loss = objective.loss(logits, targets)
        is_token = targets != PAD
        case.demand(
            torch.allclose(loss, objective.loss(logits[is_token], targets[is_token])),
            f"{setting}the loss changes when padding is left out",
        )
        (gradient,) = torch.autograd.grad(loss, logits, allow_unused=True)
        case.demand(gradient is not None, f"{setting}no gradient reaches the logits")
        case.demand(
            not bool(gradient[~is_token].any()), f"{setting}the logits of padding get a gradient"
        )
        case.demand(
            bool(gradient[is_token].any(dim=1).all()),
            f"{setting}the logits of some token get no gradient",
        )


def tokens_add_up(case: Case) -> None:
    """The loss is the sum of those of the tokens, so that micro-batches add up to a batch."""
    for _, setting, objective in case.settings(_objective):
        logits, targets = _rows(objective)
        by_pass = logits.unflatten(0, (objective.n_passes, -1))
        of_pass = targets.unflatten(0, (objective.n_passes, -1))
        context = objective.context(of_pass[:1])
        around = of_pass[:1, :, None] if context is None else context
        each = [
            objective.loss_in_context(by_pass[:, t], of_pass[:, t], around[:, t])
            for t in range(of_pass.size(1))
        ]
        whole = objective.loss(logits, targets)
        case.demand(bool(whole.isfinite()), f"{setting}the loss is infinite or NaN")
        case.demand(
            torch.allclose(torch.stack(each).sum(), whole),
            f"{setting}the loss of several tokens is not the sum of the losses of each; return a "
            "sum, not a mean",
        )


def options_change_losses(case: Case) -> None:
    """Every option changes the loss, but those of what takes passes of its own."""

    def loss(choice: Choice) -> float:
        objective = _objective(choice)
        return float(objective.loss(*_rows(objective)))

    if not _objective(choice_of(case.entry)).extra_passes:
        case.demand_effective(loss, "the losses")


def rates_are_used(case: Case) -> None:
    """Learning rates begin at 0, keep the groups' factors, and move every parameter when set."""
    parameters, optimizer = _optimizer(_maker(choice_of(case.entry)))
    rates = [group["lr"] for group in optimizer.param_groups]
    case.demand(set(rates) == {0.0}, "make must return groups with a learning rate of 0")
    factors = sorted(group.get("rate", math.nan) for group in optimizer.param_groups)
    case.demand(factors == [0.5, 1.0], "groups lose their 'rate'; make them with Group.to_torch")
    before = [parameter.detach().clone() for parameter in parameters]
    _descend(parameters, optimizer, 0.0, 2)
    case.demand(
        all(torch.equal(p, old) for p, old in zip(parameters, before, strict=True)),
        "parameters move at a learning rate of 0",
    )
    start = _square(parameters).item()
    _descend(parameters, optimizer, 0.01, 30)
    case.demand(
        not any(torch.equal(p, old) for p, old in zip(parameters, before, strict=True)),
        "some parameter does not move",
    )
    case.demand(_square(parameters).item() < start, "thirty steps do not make the loss smaller")


def checkpoints_continue(case: Case) -> None:
    """A saved and loaded optimizer goes on bit for bit."""
    for _, setting, make in case.settings(_maker):
        whole, continued, restored = (_optimizer(make) for _ in range(3))
        _descend(*whole, 0.01, 6)
        _descend(*continued, 0.01, 3)
        file = io.BytesIO()
        loaded: dict[str, Any] = {}
        with suppress(pickle.PickleError, AttributeError, TypeError):
            torch.save(continued[1].state_dict(), file)
            file.seek(0)
            loaded = torch.load(file, weights_only=True)  # as a checkpoint is read
        case.demand(
            bool(loaded),
            f"{setting}its state dict cannot be read from a checkpoint, so that an interrupted run "
            "cannot go on; keep only tensors, texts, Python's numbers, lists and dicts in "
            "self.state",
        )
        for parameter, old in zip(restored[0], continued[0], strict=True):
            parameter.data.copy_(old)
        restored[1].load_state_dict(loaded)
        _descend(*restored, 0.01, 3)
        case.demand(
            all(torch.equal(p, q) for p, q in zip(whole[0], restored[0], strict=True)),
            f"{setting}an optimizer that is saved and loaded takes other steps; keep its state in "
            "self.state",
        )


def options_change_steps(case: Case) -> None:
    """Every option changes the steps, but those of what takes passes of its own."""

    def steps(choice: Choice) -> list[list[float]]:
        parameters, optimizer = _optimizer(_maker(choice))
        _descend(parameters, optimizer, 0.2, 12)
        return [parameter.flatten().tolist() for parameter in parameters]

    if not _maker(choice_of(case.entry)).extra_passes:
        case.demand_effective(steps, "the steps")


def elements_are_independent(case: Case) -> None:
    """Without a shard_blocker, the rows of a weight are updated as the weight is."""
    for _, setting, optimizer in case.settings(_maker):
        case.demand(
            bool(optimizer.shard_blocker) or updates_rows_alike(optimizer),
            f"{setting}some rows of a weight move otherwise by themselves, so that devices cannot "
            "split it; declare a shard_blocker",
        )


def updates_rows_alike(optimizer: Optimizer) -> bool:
    """Return whether the rows of weights move by themselves as they do together."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((5, 4), (5,))
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    gradients = [
        [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        for _ in range(4)
    ]

    def moved(n_parts: int) -> list[Tensor]:
        parts = [[nn.Parameter(part) for part in w.clone().chunk(n_parts)] for w in weights]
        torch_optimizer = optimizer.make(
            [Group(parts[0], is_matrix=True), Group(parts[1], is_matrix=False, rate=0.5)]
        )
        for group in torch_optimizer.param_groups:
            group["lr"] = 0.1 * group["rate"]
        for of_step in gradients:
            for own, gradient in zip(parts, of_step, strict=True):
                for part, of_part in zip(own, gradient.chunk(n_parts), strict=True):
                    part.grad = of_part.clone()
            torch_optimizer.step()
        return [torch.cat([part.detach() for part in own]) for own in parts]

    both = zip(moved(1), moved(3), strict=True)
    return all(torch.allclose(x, y, rtol=1e-10, atol=1e-12) for x, y in both)


def rates_are_numbers(case: Case) -> None:
    """Every step has a finite rate of 0 or more, some above 0, the same at every call."""
    for _, setting, schedule in case.settings(_schedule):
        rates = _rates(schedule)
        for step, rate in rates.items():
            case.demand(
                math.isfinite(rate) and rate >= 0,
                f"{setting}the rate of step {step} is {rate}, not 0 or more",
            )
        case.demand(any(rates.values()), f"{setting}the rate is 0 at every step")
        again = {step: schedule.rate(step, _DEV) for step in reversed(rates)}
        case.demand(
            again == rates,
            f"{setting}the rate of a step depends on earlier calls; it must follow from step and "
            "dev alone, because a run that was interrupted begins in the middle",
        )


def options_change_rates(case: Case) -> None:
    """Every option changes some rate."""
    case.demand_effective(lambda choice: _rates(_schedule(choice)), "the rates")


def _schedule(choice: Choice) -> Schedule:
    return build(Schedule, choice, _DIMS, _N_STEPS)


def _rates(schedule: Schedule) -> dict[int, float]:
    return {step: schedule.rate(step, _DEV) for step in _STEPS}


def _objective(choice: Choice) -> Objective:
    return build(Objective, choice, PAD)


def _maker(choice: Choice) -> Optimizer:
    return build(Optimizer, choice)


def _rows(objective: Objective) -> tuple[Tensor, Tensor]:
    """Return logits (passes N, V) and targets (passes N,), some of them padding."""
    generator = torch.Generator().manual_seed(3)
    n = objective.n_passes
    logits = 2 * torch.randn(n * 6, 9, generator=generator, dtype=torch.float64)
    return logits, torch.tensor([4, PAD, 1, 5, 8, PAD]).repeat(n)


def _optimizer(make: Optimizer) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(1)
    matrix, vector = (
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64) + 2)
        for shape in ((3, 4), (5,))
    )
    groups = [Group([matrix], is_matrix=True), Group([vector], is_matrix=False, rate=0.5)]
    return [matrix, vector], make.make(groups)


def _descend(
    parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, rate: float, n_steps: int
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)
    for _ in range(n_steps):
        optimizer.zero_grad()
        _square(parameters).backward()
        optimizer.step()


def _square(parameters: list[nn.Parameter]) -> Tensor:
    """Return the loss that `_descend` minimises, the sum of squares, ()."""
    return torch.stack([parameter.square().sum() for parameter in parameters]).sum()
