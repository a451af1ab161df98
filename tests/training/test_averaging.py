"""The moving average of the weights: its closed form, also after interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from ablate.config import RunSpec
from ablate.training import TrainingResult, train
from ablate.training.averaging import MovingAverage
from tests.training.reversal import fresh, job, run_spec

Weights = dict[str, Tensor]


def model(value: float = 0.0) -> nn.Module:
    """Return something small with weights, a buffer and a norm, filled with noise from a seed."""
    torch.manual_seed(int(value))
    return nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 1)).double()


def closed_form(steps: list[Weights], decay: float) -> Weights:
    """Weigh step i of n with decay^(n - i), by shares that add up to 1."""
    n = len(steps)
    shares = torch.tensor([decay ** (n - i) for i in range(1, n + 1)], dtype=torch.float64)
    shares = shares / shares.sum()
    return {
        name: sum(share * w[name].double() for share, w in zip(shares, steps, strict=True))
        + torch.zeros(())
        for name in steps[0]
    }


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_after_n_steps_it_is_the_closed_form(decay: float, n: int) -> None:
    moving = MovingAverage(model().state_dict(), decay)
    steps = [model(seed).state_dict() for seed in range(n)]
    for seed in range(n):
        moving.add(model(seed).state_dict())
    torch.testing.assert_close(moving.mean(n), closed_form(steps, decay), atol=1e-11, rtol=1e-9)


def test_a_state_in_any_order_continues_bit_for_bit() -> None:
    whole, first = (MovingAverage(model().state_dict(), 0.9) for _ in range(2))
    for seed in range(6):
        whole.add(model(seed).state_dict())
    for seed in range(3):
        first.add(model(seed).state_dict())
    saved = {name: total.clone() for name, total in reversed(first.total.items())}
    second = MovingAverage(model(9).state_dict(), 0.9, saved)
    for seed in range(3, 6):
        second.add(model(seed).state_dict())
    mean = second.mean(6)
    assert all(torch.equal(w, mean[name]) for name, w in whole.mean(6).items())


def go(spec: RunSpec, folder: Path) -> tuple[TrainingResult, Weights, list[Weights]]:
    """Train; return the result, the final weights, and those after every step."""
    model = fresh(spec)
    steps: list[Weights] = []

    def note(_: object) -> None:
        steps.append({name: w.clone() for name, w in model.state_dict().items()})

    trained = train(model, job(spec, folder), note, lambda: False)
    return trained, model.state_dict(), steps


@pytest.mark.train
@pytest.mark.parametrize("training", [{"steps": 12}, {"steps": 90, "patience": 1}])
def test_a_run_ends_with_the_average_of_all_its_steps(
    tmp_path: Path, training: dict[str, Any]
) -> None:
    spec = run_spec(average={"ema": 0.8}, evaluate_every=3, **training)
    trained, weights, steps = go(spec, tmp_path)
    assert trained.steps == len(steps)
    assert trained.stopped_early == ("patience" in training)
    expected = closed_form(steps, 0.8)
    for name, weight in weights.items():
        torch.testing.assert_close(weight.double(), expected[name], atol=1e-6, rtol=1e-5)
    assert any(not torch.allclose(w, steps[-1][name], atol=1e-3) for name, w in weights.items())


@pytest.mark.train
def test_averaging_does_not_show_in_training(tmp_path: Path) -> None:
    curves = []
    for folder, average in (("moving", {"ema": 0.8}), ("last", {"last": 1})):
        trained, _, _ = go(run_spec(average=average), tmp_path / folder)
        curves.append(pd.read_csv(tmp_path / folder / "curve.csv").drop(columns="seconds"))
        assert trained.averaged_steps == ([] if folder == "moving" else [30])
        assert (tmp_path / folder / "snapshots").exists() == (folder == "last")
    pd.testing.assert_frame_equal(curves[0], curves[1])
