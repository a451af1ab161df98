"""Schedules against published numbers and their own closed forms."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ablate.parts.dims import Dims
from ablate.parts.schedule import Schedule
from ablate.registry import build, choose, slots

N_STEPS = 1000


def schedule(name: str, *, d_model: int = 512, n_steps: int = N_STEPS, **options: Any) -> Schedule:
    dims = Dims.model_validate({"d_model": d_model, "n_heads": 1, "max_len": 8})
    return build(Schedule, choose(Schedule, name, **options), dims, n_steps)


@pytest.mark.parametrize(
    ("options", "step", "rate"),
    [
        ({"d_model": 512}, 1, 1.74692811e-07),
        ({"d_model": 512}, 100, 1.74692811e-05),
        ({"d_model": 512}, 1000, 1.74692811e-04),
        ({"d_model": 512}, 4000, 6.98771243e-04),
        ({"d_model": 512}, 8000, 4.94105884e-04),
        ({"d_model": 512}, 100_000, 1.39754249e-04),
        ({"d_model": 1024}, 4000, 4.94105884e-04),
        ({"d_model": 1024}, 300_000, 5.70544331e-05),
        ({"d_model": 256, "warmup": 3000}, 3000, 1.14108866e-03),
        ({"d_model": 512, "factor": 2.0, "warmup": 8000}, 8000, 9.88211769e-04),
    ],
)
def test_noam(options: dict[str, Any], step: int, rate: float) -> None:
    assert schedule("noam", **options).rate(step) == pytest.approx(rate, rel=1e-8)


def test_inverse_sqrt_as_in_wu_et_al() -> None:
    wu = schedule("inverse_sqrt", lr=5e-3, warmup=2000, init_lr=1e-7)
    assert wu.rate(2000) == pytest.approx(5e-3)
    assert wu.rate(8000) == pytest.approx(2.5e-3)
    assert wu.rate(1) == pytest.approx(1e-7 + (5e-3 - 1e-7) / 2000)


def test_cosine_ends_at_its_lowest() -> None:
    cosine = schedule("cosine", lr=1.0, warmup=200, min_lr=0.1)
    assert cosine.rate(100) == pytest.approx(0.5)
    assert cosine.rate(200) == pytest.approx(1.0)
    assert cosine.rate(600) == pytest.approx(0.55)
    assert cosine.rate(1000) == pytest.approx(0.1)


@pytest.mark.parametrize("name", sorted(slots()["schedule"]))
def test_rates_rise_to_the_end_of_the_warm_up_and_never_after(name: str) -> None:
    rates = [schedule(name, warmup=50).rate(step) for step in range(1, N_STEPS + 1)]
    assert all(early < late for early, late in itertools.pairwise(rates[:50]))
    assert all(early >= late for early, late in itertools.pairwise(rates[49:]))
    assert min(rates) >= 0


@pytest.mark.parametrize("name", sorted(slots()["schedule"]))
def test_a_warm_up_of_zero_starts_at_the_top(name: str) -> None:
    rates = [schedule(name, warmup=0).rate(step) for step in range(1, N_STEPS + 1)]
    assert rates[0] == max(rates)
    assert rates[0] > 0


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        (name, option, value)
        for name, entry in slots()["schedule"].items()
        for option in entry.options.model_fields
        for value in ([77] if option == "warmup" else [0.125])
    ],
)
def test_every_option_changes_some_rate(name: str, option: str, value: float) -> None:
    def rates(**options: Any) -> list[float]:
        return [
            schedule(name, **{"warmup": 50} | options).rate(step) for step in range(1, N_STEPS + 1)
        ]

    assert rates(**{option: value}) != rates()
