"""Schedules against published numbers and their own closed forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from ablate.parts.dims import Dims
from ablate.parts.schedule import Schedule
from ablate.registry import build, choose, lookup, slots
from tests.tiny import alternatives

N_STEPS = 1000


def schedule(name: str, *, d_model: int = 512, n_steps: int = N_STEPS, **options: Any) -> Schedule:
    dims = Dims.model_validate({"d_model": d_model, "n_heads": 1, "max_len": 8})
    return build(Schedule, choose(Schedule, name, **options), dims, n_steps)


WSD = {"lr": 1.0, "warmup": 100, "decay": 0.4, "min_lr": 0.1}


@pytest.mark.parametrize(
    ("name", "options", "rates"),
    [
        ("noam", {"d_model": 512, "factor": 2.0, "warmup": 8000},
         {4000: 1024 * 0.5 * 512**-1.5 * 8000**-0.5, 32_000: 2 * 512**-0.5 * 32_000**-0.5}),
        # fairseq's InverseSquareRootSchedule, version 0.12.3, at its updates 1, 2, ..., 7
        ("inverse_sqrt", {"lr": 1.0, "warmup": 4, "init_lr": 0.2, "delay": 1},
         {1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8, 5: 1.0, 6: 0.8944271909999159, 7: 0.8164965809277261}),
        ("inverse_sqrt", {"lr": 1.0, "warmup": 0, "delay": 2}, {1: 1.0, 2: 1.0, 3: 1.0, 6: 0.5}),
        ("inverse_sqrt", {"lr": 1.0, "warmup": 0}, {1: 1.0, 4: 0.5, 9: 1 / 3}),
        ("wsd", {"lr": 1.0, "warmup": 200, "decay": 0.3, "min_lr": 0.1},
         {100: 0.5, 200: 1.0, 450: 1.0, 700: 1.0, 701: 1 - 0.9 / 300, 850: 0.55, 1000: 0.1}),
        ("wsd", {"lr": 1.0, "warmup": 900, "decay": 0.5},  # over what the warm-up leaves
         {450: 0.5, 900: 1.0, 950: 0.5, 1000: 0.0}),
        ("wsd", {"n_steps": 4, "lr": 1.0, "warmup": 0, "decay": 0.01, "min_lr": 0.25},
         {1: 1.0, 2: 1.0, 3: 1.0, 4: 0.25}),
        ("wsd", WSD | {"form": "linear"}, {600: 1.0, 700: 0.1 + 0.9 * 0.75, 1000: 0.1}),
        ("wsd", WSD | {"form": "sqrt"}, {600: 1.0, 700: 0.1 + 0.9 * 0.5, 1000: 0.1}),
        ("wsd", WSD | {"form": "exponential"}, {600: 1.0, 700: 0.1**0.25, 1000: 0.1}),
        ("wsd", WSD | {"lr": 2.0, "min_lr": 0.5, "form": "exponential"}, {600: 2.0, 800: 1.0}),
        ("constant", {"lr": 2.0, "warmup": 4}, {1: 0.5, 4: 2.0, 1000: 2.0}),
        ("one_cycle",
         {"n_steps": 3, "lr": 0.5, "warmup": 2, "start_factor": 0.1, "end_factor": 0.5},
         {1: 0.05, 2: 0.5, 3: 0.25}),
        ("polynomial", {"lr": 1.0, "warmup": 200, "min_lr": 0.1}, {600: 0.1 + 0.9 / 4, 1000: 0.1}),
    ],
)  # fmt: skip
def test_rates_by_hand(name: str, options: dict[str, Any], rates: dict[int, float]) -> None:
    part = schedule(name, **options)
    assert {step: part.rate(step) for step in rates} == pytest.approx(rates, rel=1e-12)


def torch_rates(
    make: Callable[[torch.optim.Optimizer], LRScheduler], n: int = N_STEPS + 1
) -> list[float]:
    """Return the first ``n`` rates that a scheduler of PyTorch gives, from 1.0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for k in range(n):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if k < n - 1:
            scheduler.step()
    return rates


def test_cosine_is_that_of_pytorch() -> None:
    theirs = torch_rates(lambda o: CosineAnnealingLR(o, T_max=N_STEPS, eta_min=0.1))
    ours = schedule("cosine", lr=1.0, warmup=0, min_lr=0.1)
    assert [ours.rate(step) for step in range(N_STEPS + 1)] == pytest.approx(theirs)


def test_linear_is_that_of_pytorch() -> None:
    """A rise from 0 over 100 steps, then a fall to a tenth over 900."""

    def rise_and_fall(optimizer: torch.optim.Optimizer) -> SequentialLR:
        rise = LinearLR(optimizer, start_factor=1e-9, total_iters=100)
        fall = LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=900)
        return SequentialLR(optimizer, [rise, fall], milestones=[100])

    ours = schedule("linear", lr=1.0, warmup=100, min_lr=0.1)
    mine = [ours.rate(step) for step in range(N_STEPS + 1)]
    assert mine == pytest.approx(torch_rates(rise_and_fall), abs=1e-8)


def plateau_of_pytorch(dev: list[float], *, factor: float, patience: int, min_lr: float) -> float:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = ReduceLROnPlateau(
        optimizer, factor=factor, patience=patience, min_lr=min_lr, threshold=0.0, eps=0.0
    )
    for nll in dev:
        scheduler.step(nll)
    rate: float = optimizer.param_groups[0]["lr"]
    return rate


@pytest.mark.parametrize("seed", range(20))
def test_plateau_is_that_of_pytorch_on_any_history(seed: int) -> None:
    """Histories with ties, gains, losses and a NaN; every prefix of each."""
    random = np.random.default_rng(seed)
    options: dict[str, Any] = {
        "factor": random.uniform(0.3, 0.9),
        "patience": int(random.integers(0, 4)),
        "min_lr": random.choice([0.0, 0.05, 0.4]),
    }
    dev = (5 + np.round(random.normal(size=40).cumsum(), 1)).tolist()
    dev[int(random.integers(40))] = math.nan
    ours = schedule("plateau", lr=1.0, warmup=0, **options)
    rates = [ours.rate(1, dev[:n]) for n in range(len(dev) + 1)]
    theirs = [plateau_of_pytorch(dev[:n], **options) for n in range(len(dev) + 1)]
    assert rates == pytest.approx(theirs, rel=1e-12)
    assert len(set(rates)) > 1


def test_plateau_counts_evaluations_during_its_warm_up() -> None:
    plateau = schedule("plateau", lr=1.0, warmup=100, factor=0.5, patience=1)
    assert plateau.rate(50, [3.0, 3.0, 3.0]) == pytest.approx(0.5)
    assert plateau.rate(99, [3.0, 3.0, 3.0]) == pytest.approx(0.99)
    assert plateau.rate(100, [3.0, 3.0]) == 1.0
    assert plateau.rate(100, [3.0, 3.0, 3.0]) == 0.5
    assert plateau.rate(900, [3.0, 3.0, 3.0, 3.0, 3.0]) == 0.25


def test_only_plateau_depends_on_the_dev_set() -> None:
    bad = [2.0, *[3.0] * 20]
    listening = {
        name
        for name in slots()["schedule"]
        if schedule(name, warmup=50).rate(500, bad) != schedule(name, warmup=50).rate(500)
    }
    assert listening == {"plateau"}


@pytest.mark.parametrize("name", sorted(set(slots()["schedule"]) - {"cosine_restarts"}))
def test_rates_rise_to_the_end_of_the_warm_up_and_never_after(name: str) -> None:
    rates = [schedule(name, warmup=50).rate(step) for step in range(1, N_STEPS + 1)]
    assert all(early < late for early, late in itertools.pairwise(rates[:50]))
    assert all(early >= late for early, late in itertools.pairwise(rates[49:]))
    assert min(rates) >= 0


@pytest.mark.parametrize("name", sorted(set(slots()["schedule"]) - {"one_cycle"}))
def test_a_warm_up_is_a_straight_line_from_zero(name: str) -> None:
    part = schedule(name, warmup=50)
    rises = [part.rate(step) / step for step in range(1, 51)]
    assert rises == pytest.approx([part.rate(50) / 50] * 50)


@pytest.mark.parametrize("name", sorted(set(slots()["schedule"]) - {"cosine_restarts"}))
def test_a_warm_up_of_zero_starts_at_the_top(name: str) -> None:
    rates = [schedule(name, warmup=0).rate(step) for step in range(1, N_STEPS + 1)]
    assert rates[0] == max(rates)
    assert rates[0] > 0


@pytest.mark.parametrize("name", sorted(slots()["schedule"]))
def test_a_training_shorter_than_its_warm_up_only_rises(name: str) -> None:
    rates = [schedule(name, n_steps=20, warmup=50).rate(step) for step in range(1, 21)]
    assert rates == sorted(rates)
    assert len(set(rates)) == 20


BELOW = {"min_lr": [1e-4]}  # the usual values are above the highest rate


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name, entry in slots()["schedule"].items()
        for option in entry.options.model_fields
    ],
)
def test_every_option_changes_some_rate(name: str, option: str) -> None:
    """With a dev loss that does not fall, for schedules that depend on it."""

    def rates(**options: Any) -> list[float]:
        if options.get("form") == "exponential":
            options = {"min_lr": 1e-4} | options  # which it needs
        part = schedule(name, **{"warmup": 50} | options)
        return [part.rate(step, [1.0] * (step // 30)) for step in range(1, N_STEPS + 1)]

    values = BELOW.get(option) or list(alternatives(lookup("schedule", name), option))
    assert values
    assert all(rates(**{option: value}) != rates() for value in values)


def test_polynomial_is_that_of_pytorch() -> None:
    theirs = torch_rates(lambda o: PolynomialLR(o, total_iters=N_STEPS, power=1.7))
    ours = schedule("polynomial", lr=1.0, warmup=0, power=1.7)
    assert [ours.rate(step) for step in range(N_STEPS + 1)] == pytest.approx(theirs)


@pytest.mark.parametrize(("growth", "n_cycles", "first"), [(1.0, 4, 250), (2.0, 3, 100)])
def test_restarts_are_those_of_pytorch(growth: float, n_cycles: int, first: int) -> None:
    """But for the last step, at which PyTorch restarts once more."""
    n = int(sum(first * growth**cycle for cycle in range(n_cycles)))
    theirs = torch_rates(
        lambda o: CosineAnnealingWarmRestarts(o, T_0=first, T_mult=int(growth), eta_min=0.1)
    )
    ours = schedule(
        "cosine_restarts", n_steps=n, lr=1.0, warmup=0, growth=growth, n_cycles=n_cycles, min_lr=0.1
    )
    assert [ours.rate(step) for step in range(n)] == pytest.approx(theirs[:n])
    assert ours.rate(n) == pytest.approx(0.1)
    assert [step for step in range(n) if ours.rate(step) == 1.0] == [
        int(sum(first * growth**c for c in range(cycle))) for cycle in range(n_cycles)
    ]


@pytest.mark.parametrize("form", ["cosine", "linear"])
@pytest.mark.parametrize("n_phases", [2, 3])
@pytest.mark.parametrize("warmup", [2, 100, 450])
def test_one_cycle_is_that_of_pytorch(form: str, n_phases: int, warmup: int) -> None:
    """Whose first step has the number 0."""

    def cycle(optimizer: torch.optim.Optimizer) -> OneCycleLR:
        return OneCycleLR(
            optimizer,
            max_lr=0.5,
            total_steps=N_STEPS,
            pct_start=warmup / N_STEPS,
            anneal_strategy="cos" if form == "cosine" else "linear",
            cycle_momentum=False,
            div_factor=25.0,
            final_div_factor=1e4,
            three_phase=n_phases == 3,
        )

    theirs = torch_rates(cycle, N_STEPS)
    ours = schedule("one_cycle", lr=0.5, warmup=warmup, form=form, n_phases=n_phases)
    assert [ours.rate(step) for step in range(1, N_STEPS + 1)] == pytest.approx(theirs, rel=1e-9)
    assert ours.rate(warmup) == 0.5
