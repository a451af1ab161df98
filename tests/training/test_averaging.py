"""The moving average of the weights: its closed form, also after interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from ablate.config import RunSpec
from ablate.config.experiment import Average
from ablate.errors import RunError
from ablate.parts.optimizer import Group, Optimizer
from ablate.registry import build, choose
from ablate.training import TrainingResult, train
from ablate.training.averaging import MovingAverage, Snapshots, evaluated_weights
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


def model_of(value: float) -> nn.Module:
    """Return a model whose weights all have one value."""
    model = nn.Linear(2, 3)
    for weight in model.parameters():
        nn.init.constant_(weight, value)
    return model


def snapshots(folder: Path, nlls: list[float], **average: int) -> Snapshots:
    """Return what is kept of one snapshot every ten steps, whose weights are their steps."""
    folder.mkdir(exist_ok=True)
    kept = Snapshots(folder, Average(**average))
    for step, nll in enumerate(nlls, start=1):
        kept.add(model_of(10 * step), 10 * step, nll)
    return kept


def values(weights: dict[str, Tensor]) -> list[float]:
    return sorted({float(x) for weight in weights.values() for x in weight.flatten()})


@pytest.mark.parametrize(
    ("nlls", "average", "steps"),
    [
        ([4.0, 1.0, 3.0, 2.0], {"last": 1}, [40]),
        ([4.0, 1.0, 3.0, 2.0], {"last": 3}, [20, 30, 40]),
        ([4.0, 1.0, 3.0, 2.0], {"best": 1}, [20]),
        ([4.0, 1.0, 3.0, 2.0], {"best": 2}, [20, 40]),
        ([4.0, 1.0, 3.0, 2.0], {"best": 3}, [20, 30, 40]),
        ([2.0, 1.0, 1.0], {"best": 1}, [20]),
    ],
    ids=str,
)
def test_the_last_or_the_best_are_kept_named_in_order_and_averaged(
    nlls: list[float], average: dict[str, int], steps: list[int], tmp_path: Path
) -> None:
    kept = snapshots(tmp_path, nlls, **average)
    assert kept.steps == steps
    assert values(kept.mean()) == pytest.approx([sum(steps) / len(steps)])


def test_files_are_pruned_that_are_not_kept(tmp_path: Path) -> None:
    kept = snapshots(tmp_path, [3.0, 2.0, 1.0], last=2)
    (tmp_path / "other.txt").touch()
    assert len(list(tmp_path.glob("*.safetensors"))) == 3, "the list is not yet on disk"
    kept.prune()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "20.safetensors",
        "30.safetensors",
        "other.txt",
    ]


def test_a_weight_with_two_names_is_averaged_under_both(tmp_path: Path) -> None:
    """Such as one projection for queries and keys."""
    shared = nn.Linear(2, 3)
    model, kept = nn.ModuleDict({"q": shared, "k": shared}), Snapshots(tmp_path, Average(last=2))
    for step in (1, 2):
        nn.init.constant_(shared.weight, step)
        kept.add(model, step, 1.0)
    mean = kept.mean()
    assert mean.keys() == model.state_dict().keys()
    assert values({"q": mean["q.weight"], "k": mean["k.weight"]}) == [1.5]


def test_a_mean_is_summed_in_double_and_has_the_type_of_the_weights(tmp_path: Path) -> None:
    """In half precision 2049 would be 2048, and the sum of the three infinite."""
    kept = Snapshots(tmp_path, Average(last=3))
    for step, value in enumerate((30_000.0, 30_016.0, 30_032.0), start=1):
        kept.add(model_of(value).half(), step, 1.0)
    mean = kept.mean()
    assert {weight.dtype for weight in mean.values()} == {torch.float16}
    assert values(mean) == [30_016.0], "the sum of three must not overflow the type of the weights"


def test_damage_is_noticed(tmp_path: Path) -> None:
    kept = snapshots(tmp_path, [2.0, 1.0], last=2)
    assert kept.are_intact()
    of_another_process = Snapshots(tmp_path, Average(last=2), kept.entries)
    assert of_another_process.are_intact(), "what another process has written is intact, too"
    file = tmp_path / "10.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not kept.are_intact(), "one flipped bit must be noticed"
    with pytest.raises(RunError, match="is damaged; the next call begins anew"):
        kept.mean()
    file.write_bytes(content)
    assert kept.are_intact()
    file.unlink()
    assert not kept.are_intact(), "a lost file must be noticed"


def test_averages_of_an_optimizer_are_in_the_model_only_meanwhile() -> None:
    """Also where an error ends the evaluation."""
    model = model_of(1.0)
    group = Group(list(model.parameters()), is_matrix=False)
    optimizer = build(Optimizer, choose(Optimizer, "schedule_free_adamw")).make([group])
    for of_group in optimizer.param_groups:
        of_group["lr"] = 0.1
    for _ in range(3):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    own = [weight.detach().clone() for weight in model.parameters()]
    averages = [average.clone() for _, average in optimizer.averages()]  # type: ignore[attr-defined]
    assert not torch.equal(own[0], averages[0])

    def evaluate() -> None:
        with evaluated_weights(optimizer):
            torch.testing.assert_close(list(model.parameters()), averages, rtol=0, atol=0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    torch.testing.assert_close([w.detach() for w in model.parameters()], own, rtol=0, atol=0)


def test_an_optimizer_without_averages_evaluates_the_weights_themselves() -> None:
    model = model_of(1.0)
    with evaluated_weights(torch.optim.SGD(model.parameters(), lr=0.1)):
        nn.init.zeros_(model.get_parameter("bias"))
    assert not model.get_parameter("bias").any(), "nothing is restored, since nothing was replaced"
